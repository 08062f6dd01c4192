"""What must never be lost or told wrongly: files used twice, runs cut short, weights, sizes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.test_evaluate import _save as save_image
from tests.commands import quickly
from zerotprune.cli import main
from zerotprune.data import demo
from zerotprune.data.images import batches
from zerotprune.data.models import load
from zerotprune.measure import evaluation
from zerotprune.measure.accuracy import UNPRUNED

FILES = ("a.json", "w.safetensors", "rows.csv")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a folder of ten class folders with one image each, weights, and a schedule."""
    images, _ = demo.images(10, seed=3)
    for number, image in enumerate(images):
        (tmp_path / "images" / str(number)).mkdir(parents=True)
        save_image(image, tmp_path / "images" / str(number) / "a.png")
    save_file(demo.model().state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "a.json").write_text('{"version": 1, "stages": []}')
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("search demo images --cost 0.6 --out x.json --storage x.json", "are one file"),
        ("search demo images --cost 0.6 --out x.json --storage sqlite:///x.json", "are one file"),
        ("search demo images --cost 0.6 --out w.safetensors --weights w.safetensors", "one file"),
        ("search demo images --cost 0.6 --out x.json --csv x.json", "are one file"),
        ("calibrate demo images --out a.json --schedule a.json", "are one file"),
        ("show images --model demo --out images/0/a.png", "is one of the files in --images"),
        ("show images/0/a.png --model demo --out images/0/a.png", "are one file"),
        ("compare demo images --method slicing --method tomee", "unknown method 'tomee'"),
        ("info demo --size 13", "size must be a multiple of"),
        ("info demo --size 100000", "--size must be at most 4096"),
        ("evaluate demo images --workers 100000", "--workers must be at most 256"),
        ("evaluate demo images --device meta", "cannot run on 'meta'"),
        ("calibrate demo images --out c.json --threshold inf", "--threshold must be at most 1"),
        ("evaluate swin_tiny_patch4_window7_224 images", "cannot prune"),
    ],
)
def test_refused_before_anything_is_read_or_written(
    arguments: str, message: str, home: Path
) -> None:
    before = snapshot(home)
    done = quickly(*arguments.split(), cwd=home)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert snapshot(home) == before


@pytest.mark.parametrize("command", ["evaluate", "compare", "demo"])
def test_a_run_cut_short_says_so_and_writes_no_row(
    command: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(stream: Iterator[Any]) -> Iterator[Any]:
        yield next(stream)
        raise KeyboardInterrupt

    module, read = import_module(f"zerotprune.cli.{command}"), batches
    monkeypatch.setattr(evaluation, "batches", lambda *args, **kwargs: cut(read(*args, **kwargs)))
    if command == "demo":
        some = module._batches
        monkeypatch.setattr(module, "_batches", lambda count: cut(some(count)))
        monkeypatch.setattr(module, "_contenders", lambda model: [UNPRUNED])
    options = {
        "evaluate": ["demo", "images", "--workers", "0", "--batch", "4", "--cost", "0.7"],
        "compare": ["demo", "images", "--workers", "0", "--batch", "4", "--method", "slicing",
                    "--cost", "0.7"],
        "demo": ["--images", "50"],
    }[command]  # fmt: skip
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "argv", ["zerotprune", command, *options, "--csv", "rows.csv"])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert ended.value.code == 130
    seen, total = (25, 50) if command == "demo" else (4, 10)
    assert f"{seen} of {total} images" in output.err
    assert "top-1 %" not in output.out
    assert not (home / "rows.csv").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda weight: weight.fill_(float("nan")), "values that are not finite"),
        (lambda weight: weight.fill_(float("inf")), "values that are not finite"),
        (lambda weight: weight.to_sparse(), "not a plain dense tensor"),
    ],
)
def test_weights_that_nobody_should_believe(spoil: Any, message: str, tmp_path: Path) -> None:
    model = demo.untrained()
    state = model.state_dict()
    name = next(key for key in state if key.endswith("qkv.weight"))
    torch.save({**state, name: spoil(state[name].clone())}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        load("demo", weights=tmp_path / "w.pt")


def test_a_pickle_gets_one_sentence_of_ours_and_runs_nothing(tmp_path: Path) -> None:
    import pickle

    class Malice:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "w.pt").write_bytes(pickle.dumps(Malice()))
    with pytest.raises(ValueError, match="plain tensors") as refused:
        load("demo", weights=tmp_path / "w.pt")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "executed").exists()
