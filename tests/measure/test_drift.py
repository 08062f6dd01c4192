"""Drift by float64 NumPy twins written from its description."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.commands import quickly
from zerotprune import Schedule, gmacs
from zerotprune.budgets import speed
from zerotprune.budgets.speed import Timed
from zerotprune.cli.drift import drift
from zerotprune.cli.options import ReadingOptions
from zerotprune.clock import Timings
from zerotprune.measure.drift import find_neighbors, measure_drift, recall


def neighbors(queries: np.ndarray, index: np.ndarray, count: int) -> list[list[int]]:
    """Find neighbors by cosine, excluding the image itself."""
    nearest = []
    for number, query in enumerate(queries):
        cosines = [
            -np.inf
            if other == number
            else query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
            for other, vector in enumerate(index)
        ]
        nearest.append(sorted(range(len(index)), key=lambda at: -cosines[at])[:count])
    return nearest


def share(actual: list[list[int]], true: list[list[int]]) -> float:
    return float(
        np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(actual, true, strict=True)])
    )


def some_images(folder: Path, count: int) -> None:
    rng = np.random.default_rng(2)
    folder.mkdir()
    for number in range(count):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.mark.parametrize("moved", [0.05, 0.5, 3.0])
def test_drift_is_that_of_its_twin(moved: float) -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(40, 6)) * rng.uniform(0.5, 3, size=(40, 1))
    drifted = true + moved * rng.normal(size=true.shape)
    drift = measure_drift(torch.from_numpy(drifted), torch.from_numpy(true))
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(drifted, true, strict=True)
    ]
    np.testing.assert_allclose(drift.cosines, cosines, atol=1e-12)
    assert drift.mean == pytest.approx(np.mean(cosines))
    assert drift.first_percentile == pytest.approx(np.percentile(cosines, 1))
    assert drift.moved(5) == np.argsort(cosines, kind="stable")[:5].tolist()
    for count in (1, 10):
        near = neighbors(true, true, count)
        assert drift.recall[count] == pytest.approx(share(neighbors(drifted, drifted, count), near))
        mixed = share(neighbors(drifted, true, count), near)
        assert drift.recall_unpruned_index[count] == pytest.approx(mixed)


def test_many_images_are_compared_in_parts() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(1500, 4).double(), dim=-1)
    actual = find_neighbors(vectors, vectors, 3)
    cosines = vectors @ vectors.T
    cosines.fill_diagonal_(-2)
    assert torch.equal(actual, cosines.topk(3).indices)
    assert recall(actual, actual, 3) == 1.0


def test_few_images_have_few_neighbors() -> None:
    drift = measure_drift(torch.eye(4), torch.eye(4))
    assert drift.recall[10] == 1.0
    with pytest.raises(ValueError, match="at least 3 images, got 2"):
        measure_drift(torch.eye(2), torch.eye(2))


def test_the_command_at_a_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the clock of a machine on which time is cost."""

    def timed(
        model: nn.Module, schedules: Sequence[Schedule], images: Tensor, rounds: int = 0
    ) -> list[Timed]:
        assert len(images) == 3, "a speed is measured at --batch"
        speeds = [gmacs(model) / gmacs(model, schedule) for schedule in schedules]
        return [Timed(Timings([0.01]), Timings([0.01 / speed])) for speed in speeds]

    monkeypatch.setattr(speed, "time_schedules", timed)
    monkeypatch.chdir(tmp_path)
    some_images(tmp_path / "images", 6)
    reading = ReadingOptions(batch=3, workers=0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        drift("demo", "images", speedup=[1.3], method=["fold", "tome"], reading=reading, json=True)
    unpruned, *pruned = json.loads(printed.getvalue())
    assert [row["name"] for row in pruned] == ["fold", "tome"]
    for row in pruned:
        assert unpruned["gmacs"] / row["gmacs"] == pytest.approx(1.3, rel=0.05)


def test_the_command(tmp_path: Path) -> None:
    some_images(tmp_path / "images", 6)
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    common = ("drift", "demo", "images", "--workers", "0", "--batch", "3", "--cost", "0.7")
    done = quickly(*common, "--method", "fold", "random", "--plots", ".", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: " in done.stderr
    unpruned, fold, random = json.loads(done.stdout)
    assert [row["name"] for row in (unpruned, fold, random)] == ["unpruned", "fold", "random"]
    assert unpruned["cosine"] == pytest.approx(1)
    assert unpruned["recall_at_10"] == 1
    assert fold["images"] == 6
    assert 1 > fold["cosine"] > random["cosine"]
    assert len(fold["moved_most"]) == 6
    assert fold["moved_most"][0][1] <= fold["moved_most"][1][1]
    for name in ("drift.png", "moved.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 500
    done = quickly(*common, "--method", "fold", cwd=tmp_path)
    assert "moved most by fold" in done.stdout
    assert quickly(*common, "--cost", "0", cwd=tmp_path).returncode == 2
    done = quickly(*common, "--speedup", "1.5", cwd=tmp_path)
    assert done.returncode == 2
    assert "--cost and --speedup" in done.stderr
