"""The benchmark of transfer at a small size, and what the page makes of its rows."""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

from benchmarks.tables import transfer, transfer_report
from benchmarks.tables.cached_images import CachedImages, cropped
from tests.finetune.test_command import save_images
from zerotprune import Schedule, Stage, gmacs
from zerotprune.measure import records


def model_(*_: object) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = timm.create_model("test_vit", img_size=224, num_classes=9).eval()
    return made


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[transfer.Row]:
    shared = tmp_path_factory.mktemp("shared")
    for part, seed in (("train", 0), ("test", 1)):
        save_images(shared / "pets" / part, 3, 2, seed)
    chosen = argparse.Namespace(shared=shared, device="cpu", batch=4, limit=None, epochs=(1, 1),
                                lr=(1e-3, 1e-3), new_lr=1e-2, jobs=1,
                                methods=("fold", "zero-tprune", "zero-tprune-paper", "dynamicvit",
                                         "a-vit"))  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfer, "real_model", model_)
        patched.setattr(transfer, "GMACS", (0.7 * gmacs(model_()),))
        kept: list[transfer.Row] = []
        transfer.run(transfer.Job("test_vit", "pets", 0, chosen), kept.append)
        return kept


def test_every_run_has_a_row(rows: list[transfer.Row], tmp_path: Path) -> None:
    written = [
        (str(row["name"]).split()[0], row["mode"], bool(row["train_seconds"])) for row in rows
    ]
    assert written == [
        ("unpruned", "off the shelf", True),
        ("fold", "off the shelf", False),
        ("zero-tprune", "off the shelf", False),
        ("zero-tprune-paper", "off the shelf", False),
        ("dynamicvit", "off the shelf", False),
        ("a-vit", "off the shelf", False),
        ("fold", "trained", True),
        ("zero-tprune", "trained", True),
        ("dynamicvit", "trained", True),
        ("a-vit", "trained", True),
    ]
    assert all(row["images"] == 6 for row in rows)
    assert rows[6]["gmacs"] == rows[1]["gmacs"]
    for trained in rows[7:]:
        assert float(str(trained["gmacs"])) == pytest.approx(float(str(rows[1]["gmacs"])), rel=0.02)
    untrained, learned = (Schedule.from_json(str(rows[at]["schedule"])) for at in (2, 7))
    assert any(stage.similar for stage in untrained.stages)
    assert not any(stage.similar for stage in learned.stages)
    assert "kl" not in rows[6]
    records.append(tmp_path / "rows.csv", rows)
    assert len(transfer_report.rows_in(tmp_path / "rows.csv")) == 10


@pytest.mark.parametrize("similar", [0, 10])
def test_the_section(tmp_path: Path, similar: int) -> None:
    """Use numbers that can be checked by hand: two seeds, four methods, one model."""
    made, schedule = [], Schedule((Stage(3, 0.8, similar), Stage(6, 0.8)))
    for seed in (0, 1):
        for name, mode, top1, seconds in (
            ("unpruned", "off the shelf", 90.0, 8.0), ("fold @ 0.9 G", "off the shelf", 89.0, ""),
            ("fold @ 0.65 G", "off the shelf", 85.0, ""), ("fold @ 0.65 G", "trained", 88.0, 4.0),
            ("tome @ 0.65 G", "trained", 86.0, 6.0),
            ("dynamicvit @ 0.65 G", "trained", 84.0, 6.0),
            ("zero-tprune @ 0.65 G", "trained", 85.0, 6.0),
        ):  # fmt: skip
            made.append({
                "table": "transfer", "model": "deit_tiny_patch16_224", "data": "pets", "images": 9,
                "name": name, "mode": mode, "seed": seed, "top1": top1 + seed, "gmacs": 0.65,
                "change": top1 - 90,
                "schedule": "" if name == "unpruned" else schedule.one_line(),
                "train_seconds": seconds,
            })  # fmt: skip
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, records.FIELDS, restval="")
        writer.writeheader()
        writer.writerows([*made, made[0] | {"top1": 90.0}])  # run again: the last one counts
    text = transfer_report.section(tmp_path / "rows.csv", tmp_path)
    assert "| unpruned | 90.5 ± 0.5 |  | 8 | 88.6 |" in text
    assert "| fold @ 0.65 G | 85.5 ± 0.5 (-5.0) | 88.5 ± 0.5 (-2.0) | 4 |  |" in text
    rivals = "tome trained.* of tome, zero-tprune, dynamicvit"
    assert re.search(rf"Fold off the shelf − {rivals}: -1\.0 ± 0\.0", text), text
    assert re.search(rf"Fold trained − {rivals}: \+2\.0 ± 0\.0", text), text
    claim = "| zero-tprune beats dynamicvit @ 0.65 G, trained | deit_tiny | +1.0 ± 0.0 | agrees |"
    assert claim in text
    # Rows whose schedules have S-stages are of no method of the paper: the page says which it has.
    assert (transfer_report.WITH_S in text) is bool(similar)
    assert (transfer_report.WITHOUT_S in text) is not bool(similar)
    assert (tmp_path / "transfer-pets.png").stat().st_size > 10_000
    assert transfer_report.section(_empty(tmp_path), tmp_path) == ""


def _empty(folder: Path) -> Path:
    path = folder / "empty.csv"
    path.write_text(",".join(records.FIELDS) + "\n")
    return path


def test_crops_lie_in_the_image() -> None:
    """Crop a ramp from left to right: the crop is a part of it, flipped half of the time."""
    ramp = torch.linspace(0, 1, 248).expand(16, 3, 248, 248)
    shown = cropped(ramp, np.random.default_rng(0))
    assert shown.shape == (16, 3, 224, 224)
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 1
    steps = shown[:, 0, 0].diff(dim=-1)
    assert {bool(moved) for moved in (steps.mean(dim=-1) > 0)} == {True, False}
    widths = (shown[:, 0, 0, -1] - shown[:, 0, 0, 0]).abs()
    assert 0.4 < float(widths.min()) < float(widths.max()) <= 1


def test_epochs_are_drawn_by_seed_and_number() -> None:
    pixels = torch.randint(0, 255, (5, 3, 30, 30), dtype=torch.uint8)
    images = CachedImages(pixels, torch.arange(5), torch.zeros(3, 1, 1), torch.ones(3, 1, 1), 2)
    first, again, other = (list(images.epoch(number)) for number in (0, 0, 1))
    assert len(first) == images.steps == 2
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0][0])
    assert len({int(label) for _, labels in first for label in labels}) == 4
