"""`zerotprune finetune`: trained weights by one command; killed, resumed, in two processes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.commands import quickly
from tests.finetune.forked import Forked
from zerotprune.data import demo
from zerotprune.finetune.weights import schedule_in

EPOCHS = 4
BASE = ("finetune", "test_vit", "train", "val", "--weights", "w.safetensors", "--batch", "4",
        "--workers", "0", "--epochs", str(EPOCHS), "--lr", "1e-3")  # fmt: skip
PRUNED = (*BASE, "--cost", "0.7")


def save_images(folder: Path, classes: int, each: int, seed: int = 0) -> None:
    """Noise, whose colour says the class."""
    dice = np.random.default_rng(seed)
    for label in range(classes):
        (folder / f"c{label}").mkdir(parents=True)
        for number in range(each):
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
def forked() -> Iterator[Forked]:
    held = Forked()
    yield held
    held.close()


@pytest.fixture(scope="module")
def whole(home: Path, forked: Forked) -> dict[str, torch.Tensor]:
    """The weights that an undisturbed training comes to."""
    codes, said = forked.run(*PRUNED, "--out", "whole.safetensors", home=home)
    assert codes == [0], said
    assert f"epoch {EPOCHS}: loss" in said
    assert "written: whole.safetensors" in said
    return load_file(home / "whole.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_trained_and_evaluated_without_more_words(
    home: Path, whole: dict[str, torch.Tensor]
) -> None:
    assert not same(whole, load_file(home / "w.safetensors"))
    assert not (home / "whole.safetensors.checkpoint").exists()
    schedule = schedule_in(home / "whole.safetensors")
    assert schedule is not None
    assert schedule.method.name == "fold"
    done = quickly("evaluate", "test_vit", "val", "--weights", "whole.safetensors", "--workers",
                   "0", "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"name": "fold"' in done.stdout
    done = quickly("info", "test_vit", "--schedule", "whole.safetensors", cwd=home)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_any_moment_it_resumes_to_the_same_weights(
    number: signal.Signals, home: Path, forked: Forked, whole: dict[str, torch.Tensor]
) -> None:
    out = f"{number.name}.safetensors"
    codes, said = forked.run(*PRUNED, "--out", out, home=home, signal=number,
                             once=f"{out}.checkpoint")  # fmt: skip
    assert codes == [130 if number == signal.SIGINT else -signal.SIGKILL], said
    if number == signal.SIGINT:
        assert "the same command goes on from there" in said
    assert not (home / out).exists()
    codes, said = forked.run(*PRUNED, "--out", out, home=home)
    assert codes == [0], said
    assert "goes on after epoch" in said
    assert f"epoch {EPOCHS}: loss" in said
    assert "epoch 1: loss" not in said
    assert same(load_file(home / out), whole)


def test_a_new_head_for_other_classes(home: Path, forked: Forked) -> None:
    save_images(home / "five" / "train", 5, 2)
    save_images(home / "five" / "val", 5, 1, seed=1)
    arguments = ["finetune", "test_vit", "five/train", "five/val", "--cost", "1", "--epochs", "1",
                 "--frozen", "--out", "five.safetensors", *BASE[4:10]]  # fmt: skip
    codes, said = forked.run(*arguments, home=home)
    assert codes == [0], said
    assert "before training" not in said, "a head that knows nothing is not worth measuring"
    before, after = load_file(home / "w.safetensors"), load_file(home / "five.safetensors")
    assert after["head.weight"].shape == (5, 64)
    assert torch.equal(before["blocks.0.attn.qkv.weight"], after["blocks.0.attn.qkv.weight"])
    assert schedule_in(home / "five.safetensors") is None
    done = quickly("evaluate", "test_vit", "five/val", "--weights", "five.safetensors", "--workers",
                   "0", "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_weights_that_a_method_has_of_its_own(home: Path, forked: Forked) -> None:
    arguments = ("finetune", "test_vit", "train", "val", "--cost", "0.7", "--epochs", "1", "--out",
                 "own.safetensors", "--method", "dynamicvit", *BASE[4:10])  # fmt: skip
    codes, said = forked.run(*arguments, home=home)
    assert codes == [0], said
    assert any(
        name.startswith("zerotprune.dynamicvit") for name in load_file(home / "own.safetensors")
    )
    done = quickly("evaluate", "test_vit", "val", "--weights", "own.safetensors", "--workers", "0",
                   "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"name": "dynamicvit"' in done.stdout


def test_in_two_processes(home: Path, forked: Forked) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    around = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [{**around, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    arguments = ("finetune", "test_vit", "train", "val", "--cost", "0.7", "--epochs", "1", "--out",
                 "two.safetensors", "--device", "cpu", *BASE[4:10])  # fmt: skip
    codes, said = forked.run(*arguments, home=home, surroundings=both)
    assert codes == [0, 0], said
    assert said.count("written: two.safetensors") == 1
    assert (home / "out1.txt").read_text() == ""
    assert not same(load_file(home / "two.safetensors"), load_file(home / "w.safetensors"))


def test_the_built_in_model(home: Path, forked: Forked) -> None:
    shown, digits = demo.images(40, seed=3)
    for number, (image, digit) in enumerate(zip(shown, digits.tolist(), strict=True)):
        for part in ("train", "val"):
            place = home / "digits" / part / str(digit)
            place.mkdir(parents=True, exist_ok=True)
            pixels = ((image + 1) * 127.5).byte().permute(1, 2, 0).numpy()
            if number < 16:
                Image.fromarray(pixels).save(place / f"{number}.png")
    for folder in (home / "digits").glob("*/*"):
        if not any(folder.iterdir()):
            folder.rmdir()
    codes, said = forked.run(
        "finetune", "--model", "demo", "--train", "digits/train", "--val", "digits/val", "--cost",
        "0.5", "--epochs", "1", "--batch", "8", "--workers", "0", "--out", "d.safetensors",
        "--method", "tome", home=home,
    )  # fmt: skip
    assert codes == [0], said
    assert "tome" in said
    done = quickly("evaluate", "demo", "digits/val", "--weights", "d.safetensors", "--workers", "0",
                   "--json", cwd=home)  # fmt: skip
    assert done.returncode == 0, done.stderr
