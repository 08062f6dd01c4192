"""`zerotprune finetune`: trained weights by one command; killed, resumed, in two processes."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.commands import MAIN, zerotprune
from tests.nursery import Done, nursery
from zerotprune.data import demo
from zerotprune.data.weights import schedule_in

EPOCHS = 4
BASE = ("finetune", "test_vit", "train", "val", "--weights", "w.safetensors", "--batch", "4",
        "--workers", "0", "--epochs", str(EPOCHS), "--lr", "1e-3")  # fmt: skip
PRUNED = (*BASE, "--cost", "0.7")
STEPS_AN_EPOCH = 3  # twelve images, four at a time
#: the command, which a signal meets after so many steps
STOPPING = f"""
import os
from zerotprune.finetune.training import Trainer
steps, step = [], Trainer._step
def counted(*args):
    step(*args)
    steps.append(None)
    if len(steps) == {{step}}:
        os.kill(os.getpid(), {{number}})
Trainer._step = counted
{MAIN}
"""


def save_images(folder: Path, classes: int, per_class: int, seed: int = 0) -> None:
    """Save noise whose color is its class."""
    dice = np.random.default_rng(seed)
    for label in range(classes):
        (folder / f"c{label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = dice.integers(0, 100, (24, 24, 3), dtype=np.uint8)
            pixels[..., label % 3] += 150
            Image.fromarray(pixels).save(folder / f"c{label}" / f"{number}.png")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finetune")
    save_images(place / "train", 3, 4)
    save_images(place / "val", 3, 2, seed=1)
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=3)
    save_file(model.state_dict(), place / "w.safetensors")
    return place


@pytest.fixture(scope="module")
def whole(home: Path) -> dict[str, torch.Tensor]:
    """Return the weights of an undisturbed training."""
    done = zerotprune(*PRUNED, "--out", "whole.safetensors", cwd=home)
    assert done.returncode == 0, done
    assert f"epoch {EPOCHS}: loss" in done.stdout
    assert "written: whole.safetensors" in done.stdout
    return load_file(home / "whole.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def evaluated(data: str, weights: str, home: Path) -> Done:
    """Evaluate by the schedule that the weights were trained for."""
    return zerotprune("evaluate", "test_vit", data, "--weights", weights, "--workers", "0",
                      "--json", cwd=home)  # fmt: skip


def test_it_is_trained_and_evaluated_without_more_words(
    home: Path, whole: dict[str, torch.Tensor]
) -> None:
    assert not same(whole, load_file(home / "w.safetensors"))
    assert not (home / "whole.safetensors.checkpoint").exists()
    schedule = schedule_in(home / "whole.safetensors")
    assert schedule is not None
    assert schedule.method.name == "fold"
    done = evaluated("val", "whole.safetensors", home)
    assert done.returncode == 0, done.stderr
    assert '"name": "fold"' in done.stdout
    done = zerotprune("info", "test_vit", "--schedule", "whole.safetensors", cwd=home)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_an_epoch_it_resumes_to_the_same_weights(
    number: signal.Signals, home: Path, whole: dict[str, torch.Tensor]
) -> None:
    out = f"{number.name}.safetensors"
    code = STOPPING.format(step=STEPS_AN_EPOCH + 2, number=int(number))
    done = nursery().run(code, *PRUNED, "--out", out, cwd=home)
    assert (home / f"{out}.checkpoint").exists(), done
    output = done.stdout + done.stderr
    assert done.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), output
    if number == signal.SIGINT:
        assert "same command" in output
    assert not (home / out).exists()
    done = zerotprune(*PRUNED, "--out", out, cwd=home)
    assert done.returncode == 0, done
    assert "after epoch" in done.stdout
    assert f"epoch {EPOCHS}: loss" in done.stdout
    assert "epoch 1: loss" not in done.stdout
    assert same(load_file(home / out), whole)


def test_a_new_head_for_other_classes(home: Path) -> None:
    save_images(home / "five" / "train", 5, 2)
    save_images(home / "five" / "val", 5, 1, seed=1)
    arguments = ["finetune", "test_vit", "five/train", "five/val", "--cost", "1", "--epochs", "1",
                 "--frozen", "--out", "five.safetensors", *BASE[4:10]]  # fmt: skip
    done = zerotprune(*arguments, cwd=home)
    assert done.returncode == 0, done
    assert "before training" not in done.stdout, "a head that knows nothing is not worth measuring"
    before, after = load_file(home / "w.safetensors"), load_file(home / "five.safetensors")
    assert after["head.weight"].shape == (5, 64)
    assert torch.equal(before["blocks.0.attn.qkv.weight"], after["blocks.0.attn.qkv.weight"])
    assert schedule_in(home / "five.safetensors") is None
    done = evaluated("five/val", "five.safetensors", home)
    assert done.returncode == 0, done.stderr


def test_weights_that_a_method_has_of_its_own(home: Path) -> None:
    arguments = ("finetune", "test_vit", "train", "val", "--cost", "0.7", "--epochs", "1", "--out",
                 "own.safetensors", "--method", "dynamicvit", *BASE[4:10])  # fmt: skip
    done = zerotprune(*arguments, cwd=home)
    assert done.returncode == 0, done
    assert any(
        name.startswith("zerotprune.dynamicvit") for name in load_file(home / "own.safetensors")
    )
    done = evaluated("val", "own.safetensors", home)
    assert done.returncode == 0, done.stderr
    assert '"name": "dynamicvit"' in done.stdout


def test_at_another_size(home: Path) -> None:
    arguments = ("finetune", "test_vit", "train", "val", "--cost", "0.7", "--epochs", "1", "--out",
                 "small.safetensors", "--size", "96", *BASE[4:10])  # fmt: skip
    done = zerotprune(*arguments, cwd=home)
    assert done.returncode == 0, done
    assert load_file(home / "small.safetensors")["pos_embed"].shape[1] == 1 + 6 * 6
    assert evaluated("val", "small.safetensors", home).returncode == 0


RANKED = """
import os, sys
from zerotprune.cli import main
port, rank = sys.argv[1:3]
del sys.argv[1:3]
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
main()
"""


def test_in_two_processes(home: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    arguments = ("finetune", "test_vit", "train", "val", "--cost", "0.7", "--epochs", "1", "--out",
                 "two.safetensors", "--device", "cpu", *BASE[4:10])  # fmt: skip
    ranks = [nursery().start(RANKED, str(port), rank, *arguments, cwd=home) for rank in "01"]
    first, second = (nursery().wait(rank) for rank in ranks)
    assert first.returncode == second.returncode == 0, (first, second)
    assert first.stdout.count("written: two.safetensors") == 1
    assert "written" not in second.stdout
    assert not same(load_file(home / "two.safetensors"), load_file(home / "w.safetensors"))


def test_the_built_in_model(home: Path) -> None:
    """Train on a folder of digits, and load the weights again, head and all."""
    shown, digits = demo.images(8, seed=3)
    for part in ("train", "val"):
        for number, (image, digit) in enumerate(zip(shown, digits.tolist(), strict=True)):
            place = home / "digits" / part / str(digit)
            place.mkdir(parents=True, exist_ok=True)
            pixels = ((image + 1) * 127.5).byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(place / f"{number}.png")
    done = zerotprune(
        "finetune", "--model", "demo", "--train", "digits/train", "--val", "digits/val", "--cost",
        "0.5", "--epochs", "1", "--batch", "8", "--workers", "0", "--out", "d.safetensors",
        "--method", "tome", cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "tome" in done.stdout
    done = zerotprune("evaluate", "demo", "digits/val", "--weights", "d.safetensors", "--workers",
                      "0", "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr
