"""Drift by float64 NumPy twins written from its description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.commands import quickly
from zerotprune.measure.drift import find_neighbours, measure_drift, recall


def neighbours(queries: np.ndarray, index: np.ndarray, count: int) -> list[list[int]]:
    """Find neighbours by cosine, excluding the image itself."""
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
        near = neighbours(true, true, count)
        assert drift.recall[count] == pytest.approx(
            share(neighbours(drifted, drifted, count), near)
        )
        mixed = share(neighbours(drifted, true, count), near)
        assert drift.recall_unpruned_index[count] == pytest.approx(mixed)


def test_many_images_are_compared_in_parts() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(1500, 4).double(), dim=-1)
    actual = find_neighbours(vectors, vectors, 3)
    cosines = vectors @ vectors.T
    cosines.fill_diagonal_(-2)
    assert torch.equal(actual, cosines.topk(3).indices)
    assert recall(actual, actual, 3) == 1.0


def test_few_images_have_few_neighbours() -> None:
    drift = measure_drift(torch.eye(4), torch.eye(4))
    assert drift.recall[10] == 1.0
    with pytest.raises(ValueError, match="at least 3 images, got 2"):
        measure_drift(torch.eye(2), torch.eye(2))


def test_the_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    (tmp_path / "images").mkdir()
    for number in range(6):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
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
