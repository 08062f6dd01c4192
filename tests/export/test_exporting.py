"""What export refuses, in one sentence; agreement; and the command as a user types it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import zerotprune as ztp
from tests.commands import quickly
from tests.families import build
from zerotprune.cli import export as cli_export
from zerotprune.cli import options
from zerotprune.data import demo, weights
from zerotprune.export import target, target_named, target_of, writing
from zerotprune.export.results import agreement, time_models
from zerotprune.export.writing import preprocessing
from zerotprune.methods import ATS, AViT, Fold, Method, ToMe
from zerotprune.surgery import current_plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "unknown target 'tflite': the targets are onnx, openvino"),
        ({"path": "model.pt"}, "onnx writes files that end in .onnx, such as"),
        ({"path": "no/such/model.onnx"}, "no folder"),
        ({"batch": 0}, "batch must be a number of images"),
        ({"batch": "any"}, "batch must be a number of images"),
        ({"to": "executorch", "path": "m.pte", "batch": "dynamic"}, "batches of one size"),
        ({"to": "torch", "path": "m.pt2", "int8": True}, "torch has no quantizer here"),
        ({"int8": True}, "int8 needs images"),
        ({"full_range": True}, "full-range needs int8"),
        ({"max_changed": 0.2}, "max-changed is for int8"),
        ({"int8": True, "max_changed": 2}, "max_changed must be at most 1, got 2"),
        ({"images": torch.zeros(2, 3, 8, 8)}, r"images must be N × \(3, 96, 96\), got"),
        ({"images": torch.zeros(2, 3, 96, 96), "batch": 3}, "at least 3 images .* got 2"),
    ],
)
def test_refusals(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ztp.export_model(build("deit"), **{"path": "model.onnx", **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", [ATS(), AViT()])
def test_adaptive_methods_are_refused(method: Method, tmp_path: Path) -> None:
    model = ztp.prune_(build("deit"), ztp.Schedule((ztp.Stage(2, 0.5),), method))
    message = (
        f"^{method.name} keeps as many tokens as an image needs, and an exported model has fixed"
    )
    with pytest.raises(ValueError, match=message):
        ztp.export_model(model, tmp_path / "model.onnx")


@pytest.mark.parametrize(("name", "package"), [("onnx", "onnxscript"), ("openvino", "openvino")])
def test_a_missing_package_gets_its_pip_line(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ValueError, match=rf"{package}: pip install 'zerotprune\[{name}\]'"):
        target_named(name).check()


def test_without_agreement_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime gives other outputs."""
    torch_target = target_named("torch")
    monkeypatch.setattr(writing, "program_of", lambda model, batch: None)
    monkeypatch.setattr(type(torch_target), "write", lambda _, program, path, facts: path.touch())
    wrong: dict[str, Any] = {"by": 0.0}

    def load(_: Any, path: Path, threads: int | None) -> Any:
        return lambda images: model(images) + wrong["by"] * torch.randn(5)

    monkeypatch.setattr(type(torch_target), "load", load)
    model: Any = build("deit")
    model.reset_classifier(5)
    for wrong["by"], message in (
        (0.05, "more than rounding"),
        (1e3, "of the answers on 8 images differ"),
    ):
        with pytest.raises(ValueError, match=message):
            ztp.export_model(model, tmp_path / "m.pt2", to="torch", rounds=0)
        assert list(tmp_path.iterdir()) == []


def test_agreement_counts_answers_and_differences() -> None:
    wanted = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [0.0, 4.0, 1.0]])
    came = wanted.clone()
    came[0, 1] = 2.5  # another answer
    came[1, 0] += 1e-4
    result = agreement(wanted, came)
    assert result.images == 3
    assert result.largest == pytest.approx(1.5)
    assert result.same == pytest.approx(2 / 3)
    assert result.typical == pytest.approx(1e-4 / 3, rel=0.01)
    with pytest.raises(ValueError, match=r"33%.* 3 images.*10%"):
        result.check("X")
    with pytest.raises(ValueError, match=r"int8.*33\.3%.* 3 images.*30\.0%"):
        result.check_int8(0.3)
    result.check_int8(0.34)
    agreement(wanted, wanted).check("X")


def test_what_is_not_finite_agrees_with_nothing() -> None:
    wanted = torch.zeros(2, 3)  # the first class of equals, as of NaN
    broken = agreement(wanted, torch.full_like(wanted, torch.nan))
    assert broken.same == 0
    with pytest.raises(ValueError, match="differs from torch"):
        broken.check("X")
    with pytest.raises(ValueError, match=r"int8.*100\.0%"):
        broken.check_int8(0.5)


def test_a_model_of_one_file_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX has a second file only for large weights."""
    onnx, file = target_named("onnx"), tmp_path / "m.onnx"
    file.write_bytes(b"weights")
    monkeypatch.setattr(type(onnx), "load", lambda _, path, threads: torch.sin)
    job = writing.Job(onnx, 1, ("float32",), torch.zeros(1, 3, 4, 4), 1, print)
    (timing,) = time_models(job, {"unpruned": {"float32": file}}, rounds=2)
    assert timing.size == 7
    assert timing.speedup == 1
    assert timing.speedup_range == (1, 1)


def test_torch_runs_with_these_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def count(images: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return images

    monkeypatch.setattr(torch.export, "load", lambda path: SimpleNamespace(module=lambda: count))
    before = torch.get_num_threads()
    for threads in (before + 1, None):
        target_named("torch").load(tmp_path / "m.pt2", threads)(torch.zeros(1))
        assert torch.get_num_threads() == before
    assert seen == [before + 1, before]


def test_preprocessing_of_timm() -> None:
    settings = preprocessing(build("deit"))
    assert settings["interpolation"] == "bicubic"
    assert settings["size"] == [96, 96]
    assert settings["mean"] == pytest.approx([0.485, 0.456, 0.406])


def test_files_are_known_by_their_endings() -> None:
    assert target_of("a/deit.onnx") is target_named("onnx")
    assert target_of("deit.xml") is target_named("openvino")
    assert target_of("deit_small_patch16_224") is None


def test_the_command_and_info(tmp_path: Path) -> None:
    ztp.Schedule((ztp.Stage(2, similar=12),), Fold()).save(tmp_path / "own.json")
    done = quickly(
        "export", "test_vit", "--random-weights", "--schedule", "own.json", "--to", "torch",
        "--out", "m.pt2", "--samples", "2", "--threads", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = " ".join(done.stdout.split())
    for word in ("test_vit in torch, batch 1", "unpruned", "slicing", "fold", "of limit",
                 "the same answer for 100.0%"):  # fmt: skip
        assert word in output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["m.pt2", "own.json"]
    assert target_named("torch").read(tmp_path / "m.pt2")["schedule"]["stages"][0]["block"] == 2
    info = quickly("info", "m.pt2", cwd=tmp_path)
    assert info.returncode == 0, info.stderr
    assert '"name": "fold"' in info.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "demo", "--cost", "0.9", "--out", "demo.onnx", "--int8"), "give --data"),
        (("export", "demo", "--out", "demo.onnx", "--full-range"), "ask for int8 as well"),
        (("export", "demo", "--limit", "5", "--out", "demo.onnx"), "--limit .* --data"),
        (("export", "demo", "--method", "tome", "--out", "demo.onnx"), "needs a budget"),
        (("export", "demo", "--out", "demo.onnx", "--samples", "-1"), "samples must be at least 0"),
        (("export", "demo", "--cost", "0.5", "--out", "demo.pt"), "end in .onnx"),
        (("export", "demo", "--to", "coreml", "--out", "demo.x"), "coreml"),
        (("info", "nothing.onnx"), "no file nothing.onnx"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = quickly(*arguments, cwd=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert re.search(message, done.stdout + done.stderr), done
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_trained_weights_are_pruned_as_they_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, seen = ztp.Schedule((ztp.Stage(2, similar=12),), ToMe()), list[Any]()
    file = tmp_path / "new.safetensors"
    weights.save(file, demo.model(), schedule, {})

    def look(model: Any, *args: object, **kwargs: object) -> Any:
        seen.append(current_plan(model))
        raise ValueError("that will do")

    monkeypatch.setattr(cli_export, "export_model", look)
    for budget in (options.BudgetOptions(), options.BudgetOptions(cost=0.7)):
        with pytest.raises(ValueError, match="that will do"):
            cli_export.export(
                "demo", out=tmp_path / "m.onnx", loading=options.ModelOptions(file), budget=budget
            )
    assert seen[0].schedule == schedule
    assert seen[1].method.name == "fold"


def test_images_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "images" / "0").mkdir(parents=True)
    (tmp_path / "images" / "0" / "0.png").write_bytes(b"no image")
    done = quickly("export", "demo", "--data", "images", "--out", "m.onnx", cwd=tmp_path)
    assert done.returncode == 2, done
    assert "none of the images in images can be read" in done.stderr


def test_a_batch_may_have_more_images_than_are_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, image = tmp_path / "images" / "0", io.BytesIO()
    home.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(image, "png")
    for number in range(5):
        (home / f"{number}.png").write_bytes(image.getvalue())
    monkeypatch.setattr(cli_export, "IMAGES", 3)
    reading = cli_export.ImageOptions(data=str(home.parent))
    for at_once, wanted in ((1, 3), (4, 4)):
        images = reading.read(demo.untrained(), None, at_once)
        assert images is not None
        assert len(images) == wanted


@pytest.mark.parametrize(("batch", "timed"), [(3, 3), ("dynamic", 1)])
def test_a_latency_is_that_of_the_batch(
    batch: Any, timed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[int]()

    def measure(model: Any, budget: Any, images: torch.Tensor, method: Any) -> Any:
        seen.append(len(images))
        raise ValueError("that will do")

    monkeypatch.setattr(options, "cost_for", measure)
    with pytest.raises(ValueError, match="that will do"):
        cli_export.export(
            "demo", out=tmp_path / "m.onnx", budget=options.BudgetOptions(latency_ms=9), batch=batch
        )
    assert seen == [timed]


def test_deit_with_its_real_weights(shared: Path, tmp_path: Path) -> None:
    """Fold on real images in ONNX Runtime; the file knows the classes of ImageNet."""
    stages = (ztp.Stage(4, similar=61), ztp.Stage(8, similar=40))
    ztp.Schedule(stages, Fold()).save(tmp_path / "own.json")
    file = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    done = quickly(
        "export", "deit_tiny_patch16_224", "--weights", str(file), "--schedule", "own.json",
        "--data", str(shared / "imagenet" / "tune"), "--limit", "12", "--batch", "2",
        "--out", "deit.onnx", "--samples", "0", "--threads", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the same answer for 100.0%" in " ".join(done.stdout.split())
    info = quickly("info", "deit.onnx", cwd=tmp_path)
    assert "1000: tench, goldfish" in info.stdout
    assert '"interpolation": "bicubic"' in info.stdout
