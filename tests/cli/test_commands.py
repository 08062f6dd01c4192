"""The command line as a user types it: output, exit codes, one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

import zerotprune as ztp
from tests.commands import quickly, zerotprune
from zerotprune.cli.checks import check_apart


def test_info_shows_geometry_cost_and_schedule() -> None:
    done = zerotprune("info", "deit_small_patch16_224", "--schedule", "ablation-is")
    assert done.returncode == 0, done.stderr
    for figure in ("14 × 14 = 196", "4.599", "4.551", "3.131", "3.080"):
        assert figure in done.stdout


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("deit_tiny_patch16_224", "and the last block's patch tokens"),
        ("vit_base_patch16_siglip_224", "the last block is whole: its patch tokens are read"),
    ],
)
def test_info_tells_what_is_never_computed(model: str, message: str) -> None:
    done = quickly("info", model, "--cost", "0.65")
    assert done.returncode == 0, done.stderr
    output = " ".join(done.stdout.split())
    assert message in output
    with torch.device("meta"):
        built = timm.create_model(model)
    schedule = ztp.schedule_for(built, cost=0.65)
    spared = ztp.gmacs(built, schedule) - ztp.gmacs(built, schedule, compute="needed")
    assert f"never computed: {spared:.3f} of them" in output
    assert "scores by: " in output
    assert "never computed" not in quickly("info", model).stdout


def test_info_takes_a_schedule_file(tmp_path: Path) -> None:
    from zerotprune import Schedule, Stage

    Schedule((Stage(6, 0.5),)).save(tmp_path / "own.json")
    done = quickly("info", "demo", "--schedule", str(tmp_path / "own.json"))
    assert done.returncode == 0, done.stderr
    assert "keep 0.5" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "resnet18"), "cannot prune timm's ResNet"),
        (("info", "demo", "--method", "tome"), "--method tome needs a budget"),
        (("info", "demo", "--batch", "4"), "--batch"),
        (("info", "demo", "--cost", "0.5", "--batch", "4"), "--batch"),
        (("info", "demo", "--device", "toaster"), "toaster"),
        (("info", "test_vit", "--weights", "gone.safetensors"), "gone.safetensors"),
        (("info", "demo", "--keep", "0.5"), "give --cost"),
        (("info", "no_such_model"), "unknown model 'no_such_model'"),
        (("info", "deit_tiny_patch16_224", "--schedule", "nope"), "neither a preset"),
        (("info", "deit_tiny_patch16_224", "--gmacs", "0.01"), "cannot be met"),
        (("info", "deit_tiny_patch16_224", "--cost", "1.5"), "cost must be at most 1"),
        (
            ("info", "deit_tiny_patch16_224", "--cost", "0.5", "--gmacs", "1"),
            "give one budget, not several",
        ),
        (("info", "test_vit", "--schedule", "ablation-is"), "got 6"),
        (("demo", "--images", "0"), "images must be at least 1"),
        (("demo", "--out", "no/such/folder/demo.png"), "no folder"),
        (("demo", "--out", "demo.xyz"), "demo.xyz"),
        (("demo", "--images", "many"), "many"),
        (("dmo",), "dmo"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = quickly(*arguments, cwd=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    output = done.stdout + done.stderr
    assert message in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ['{"version": 9, "stages": []}', "{", '{"version": 1, "stages": [{"block": 1, "x": 2}]}'],
)
def test_bad_schedule_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = quickly("info", "demo", "--schedule", str(path))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "bad.json" in done.stderr


def test_one_file_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    (tmp_path / "soft").symlink_to("a")
    weights = [("--weights", tmp_path / "a")]
    check_apart(weights, [("--out", tmp_path / "b"), ("--csv", tmp_path / "c")])
    for other in ("a", "hard", "soft", "x/../a"):
        with pytest.raises(ValueError, match=r"--out .* and --weights .* one file"):
            check_apart(weights, [("--out", tmp_path / other)])
    with pytest.raises(ValueError, match=r"--csv .* and --out .* one file"):
        check_apart([], [("--out", tmp_path / "new"), ("--csv", tmp_path / "x/../new")])
