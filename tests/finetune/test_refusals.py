"""What cannot be trained is said in one sentence before it begins; what is kept stays whole."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from tests.commands import zerotprune
from tests.finetune.test_command import save_images
from tests.nursery import nursery
from tests.waiting import wait_until
from zerotprune.cli import main
from zerotprune.data.images import open_data
from zerotprune.finetune import session
from zerotprune.finetune.images import count_overlap
from zerotprune.finetune.recipe import Recipe
from zerotprune.finetune.session import ROW, Checkpoint, keep_others_out
from zerotprune.schedule import Schedule, Stage

OPTIONS = {"--weights": "w.safetensors", "--batch": "4", "--workers": "0", "--epochs": "2",
           "--out": "new.safetensors", "--cost": "0.7"}  # fmt: skip


def options(words: list[str]) -> list[str]:
    """Add the options that a training needs to the given words."""
    rest = {name: value for name, value in OPTIONS.items() if name not in words}
    return [*words, *(word for pair in rest.items() for word in pair)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refused")
    save_images(place / "train", 3, 2)
    save_images(place / "val", 3, 1, seed=1)
    save_images(place / "two", 2, 1)
    save_images(place / "one", 1, 2)
    save_images(place / "other", 3, 1)
    (place / "other" / "c2").rename(place / "other" / "zebra")
    (place / "empty").mkdir()
    torch.manual_seed(0)
    for name, options in {
        "w": {"num_classes": 3}, "five": {"num_classes": 5},
        "wide": {"num_classes": 3, "embed_dim": 96, "num_heads": 3},
    }.items():  # fmt: skip
        save_file(timm.create_model("test_vit", **options).state_dict(),
                  place / f"{name}.safetensors")  # fmt: skip
    (place / "broken.safetensors.checkpoint").write_bytes(b"PK\x03\x04 not really")
    return place


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train two", "the class c2 is in train but not in two"),
        ("train other", "the class c2 is in train"),
        ("one one", "one has a single class"),
        ("empty val", "no images in empty"),
        ("nowhere val", "no data at nowhere"),
        ("train val --teacher five.safetensors", "the teacher has 5 classes, the model 3"),
        ("train val --teacher wide.safetensors", "of shape"),
        ("train val --teacher vit_tiny_patch16_224", "the teacher has 1000 classes"),
        ("train val --teacher nowhere", "unknown model 'nowhere'"),
        ("train val --cost 1 --token-weight 2", "--token-weight 2 needs a teacher"),
        ("train val --cost 0.01", "cannot be met by fold"),
        ("train val --cost 0", "--cost must be above 0"),
        ("train val --method tomee", "unknown method 'tomee'"),
        ("train val --epochs 0", "--epochs must be at least 1"),
        ("train val --lr nan", "--lr must be"),
        ("train val --out new.bin", "must end in .safetensors"),
        ("train val --out w.safetensors", "are one file"),
        ("train val --out nowhere/new.safetensors", "no folder nowhere"),
        ("train val --out broken.safetensors", "not a checkpoint"),
    ],
)
def test_one_sentence_and_nothing_written(arguments: str, message: str, home: Path) -> None:
    before = sorted(home.iterdir())
    done = zerotprune("finetune", "test_vit", *options(arguments.split()), cwd=home)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(home.iterdir()) == before


def test_a_zero_tprune_with_s_stages_is_not_trained(home: Path, tmp_path: Path) -> None:
    Schedule((Stage(1, 0.8), Stage(3, 0.7, similar=9))).save(tmp_path / "s.json")
    words = [word for word in options(["train", "val"]) if word not in ("--cost", "0.7")]
    before = sorted(home.iterdir())
    for named in ([], ["--method", "zero-tprune-uni"]):
        done = zerotprune("finetune", "test_vit", *words, *named, "--schedule",
                          str(tmp_path / "s.json"), cwd=home)  # fmt: skip
        assert done.returncode == 2, done
        assert re.search("I-stages.* block 3 .* 9 similar", done.stderr), done
        assert len(done.stderr.splitlines()) == 1
    assert sorted(home.iterdir()) == before


def test_a_width_that_is_not_the_teachers(home: Path) -> None:
    from zerotprune.finetune.session import check_teacher

    model = timm.create_model("test_vit", num_classes=3)
    wide = timm.create_model("test_vit", num_classes=3, embed_dim=96, num_heads=3)
    with pytest.raises(ValueError, match=r"96 channels.* 64.*--token-weight"):
        check_teacher(model, wide, tokens=True)
    check_teacher(model, wide, tokens=False)
    large = timm.create_model("test_vit", num_classes=3, img_size=96)
    with pytest.raises(ValueError, match="has 96 pixels, the model 160"):
        check_teacher(model, large, tokens=False)


def test_a_teacher_pools_as_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    student, file, seen = timm.create_model("test_vit", num_classes=3), tmp_path / "w", list[Any]()
    file.touch()

    def load(name: str, **options: Any) -> Any:
        seen.append(options)
        return student

    monkeypatch.setattr(session, "load", load)
    config: Any = SimpleNamespace(
        teacher=str(file), model="test_vit", size=None, loading={"pool": "avg"}, recipe=Recipe()
    )
    session._load_teacher(config, student)
    assert seen[0]["pool"] == "avg"


def run(home: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "argv", ["zerotprune", "finetune", *arguments])
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


def test_a_full_disk_leaves_the_last_checkpoint_whole(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, count = Path.write_bytes, 0

    def fill_up(self: Path, data: bytes) -> int:
        nonlocal count
        count += 1
        if count == 2:
            write(self, bytes(data)[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    arguments = options(["test_vit", "train", "val", "--out", "full.safetensors"])
    assert run(home, monkeypatch, *arguments) == 2
    output = capsys.readouterr().err
    assert re.search("epoch 2.*No space left on device", output), output
    assert "still there" in output
    assert len(output.splitlines()) == 1
    kept = home / "full.safetensors.checkpoint"
    checkpoint = torch.load(kept, weights_only=True)
    assert len(checkpoint["history"]) == 1
    assert not list(home.glob(".zerotprune*"))
    monkeypatch.undo()
    for other, message in (
        ((*arguments, "--method", "tome"), 'method {"name": "fold"'),
        ((*arguments, "--seed", "5"), "seed 0 there, 5 here"),
    ):
        assert run(home, monkeypatch, *other) == 2
        output = capsys.readouterr().err
        assert kept.name in output
        assert message in output
    assert run(home, monkeypatch, *arguments) == 0, "with room again it goes on"
    assert "after epoch 1 of 2" in capsys.readouterr().out
    assert not kept.exists()
    assert (home / "full.safetensors").is_file()


@pytest.mark.parametrize(
    "spoil",
    [
        {"version": 9}, {"identity": None}, {"schedule": 5}, {"history": None}, {"history": [1]},
        {"history": [{}]}, {"before": {"before": "x"}}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_of_other_things(spoil: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "a.checkpoint"
    whole = vars(Checkpoint({"model": "a"}, "{}", {}, [dict.fromkeys(ROW, 1.0)]))
    torch.save({"version": 1, **whole, **spoil}, file)
    with pytest.raises(ValueError, match=r"not a checkpoint|another release"):
        Checkpoint.load(file, {"model": "a"})
    for odd in (None, [1], torch.zeros(2)):
        torch.save(odd, file)
        with pytest.raises(ValueError, match="not a checkpoint"):
            Checkpoint.load(file, {"model": "a"})


@pytest.mark.parametrize("spoil", ["nan", "names", "optimizer", "empty", "epochs"])
def test_a_checkpoint_that_does_not_fit(
    spoil: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything but the model's tensors says that it belongs to this training."""
    original = Checkpoint.load

    def load(path: Path, identity: dict[str, object]) -> Checkpoint:
        trained = {"model": timm.create_model("test_vit", num_classes=3).state_dict()}
        state: dict[str, Any] = {**trained, "optimizer": {}, "average": None, "scaler": None}
        if spoil == "nan":
            state["model"]["head.bias"] *= float("nan")
        elif spoil == "names":
            del state["model"]["head.bias"]
        schedule = '{"version": 1, "stages": []}'
        history = [dict.fromkeys(ROW, 1.0)] * (9 if spoil == "epochs" else 1)
        Checkpoint(identity, schedule, {} if spoil == "empty" else state, history).save(path)
        return original(path, identity)

    monkeypatch.setattr(Checkpoint, "load", load)
    if spoil == "nan":  # all else fits
        monkeypatch.setattr(Optimizer, "load_state_dict", lambda self, state: None)
    monkeypatch.chdir(home)
    file = home / "odd.safetensors.checkpoint"
    file.touch()
    words = options(["train", "val", "--cost", "1", "--out", "odd.safetensors"])
    monkeypatch.setattr(sys, "argv", ["zerotprune", "finetune", "test_vit", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr().err
    file.unlink()
    assert ended.value.code == 2, output
    assert file.name in output
    assert not (home / "odd.safetensors").exists()


def test_two_trainings_for_one_file(home: Path, tmp_path: Path) -> None:
    """The second is refused at once; a killed one leaves nothing that refuses the next."""
    script = "import sys, time\nfrom pathlib import Path"
    script += "\nfrom zerotprune.finetune.session import keep_others_out"
    script += "\nwith keep_others_out(Path(sys.argv[1])):\n    time.sleep(600)"
    out = tmp_path / "new.safetensors"
    other = nursery().start(script, str(out))
    wait_until((tmp_path / ".new.safetensors.lock").exists, "the lock")
    words = options(["train", "val", "--out", str(out), "--epochs", "1", "--limit", "3"])

    def refused() -> bool:
        with pytest.raises(ValueError, match=r"another process.*--out"), keep_others_out(out):
            return False
        return True

    wait_until(refused, "the refusal")
    os.kill(other, signal.SIGKILL)
    nursery().wait(other)
    done = zerotprune("finetune", "test_vit", *words, cwd=home)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [out]


def test_images_that_are_known_from_training_are_told(home: Path) -> None:
    train, val = (open_data(home / name) for name in ("train", "val"))
    assert count_overlap(train, val) == 0
    assert count_overlap(train, open_data(home / "train", limit=4)) == 4


def test_the_checkpoint_of_another_model(tmp_path: Path) -> None:
    file = tmp_path / "c"
    Checkpoint({"model": "a", "weights": "1"}, "{}").save(file)
    assert Checkpoint.load(file, {"model": "a", "weights": "1"}).epochs == 0
    for here, message in (({"model": "b", "weights": "1"}, "model a there, b here"),
                       ({"model": "a", "weights": "2"}, "weights 1 there, 2 here"),
                       ({"model": "a"}, "weights 1 there, None here")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Checkpoint.load(file, here)


def test_a_disk_that_is_full_in_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from zerotprune.data import weights
    from zerotprune.schedule import Schedule

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    model, out = timm.create_model("test_vit", num_classes=3), tmp_path / "w.safetensors"
    weights.save(out, model, Schedule(), {})
    before = out.read_bytes()
    assert load_file(out).keys() == model.state_dict().keys()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"w\.safetensors.*No space left on device"):
        weights.save(out, model, Schedule(), {"more": 1})
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
