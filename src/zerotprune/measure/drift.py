"""Measure what pruning does to vectors, without labels: how far they move, and whether their
nearest neighbors stay the same.

Neighbors are by cosine; an image is never its own neighbor. There are two recalls: with queries
and index pruned, as if everything were embedded again, and with pruned queries against the unpruned
model's index, as if one existed already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.images import ImageDataset
from ..shapes import Float, Int
from .accuracy import Result

NEIGHBORS = (1, 10)
_ROWS = 1024  # of the cosine matrix, in memory at once


@dataclass(frozen=True)
class Drift:
    """How the vectors of a pruned model differ from those of the unpruned one."""

    cosines: Float[Tensor, " images"]  # of each image's vector to its unpruned one
    recall: dict[int, float]  # by the number of neighbors; queries and index pruned
    recall_unpruned_index: dict[int, float]  # pruned queries, unpruned index

    @property
    def mean(self) -> float:
        return self.cosines.mean().item()

    @property
    def first_percentile(self) -> float:
        """The cosine that one image in a hundred is below."""
        return self.cosines.quantile(0.01).item()

    def moved(self, count: int = 10) -> list[int]:
        """Return the images that moved most, the farthest first."""
        return self.cosines.argsort(stable=True)[:count].tolist()


def measure_drift(
    vectors: Float[Tensor, "images width"], reference: Float[Tensor, "images width"]
) -> Drift:
    """Compare the vectors of a pruned model with those of the unpruned one, image by image.

    >>> same = torch.eye(3)
    >>> measure_drift(same, same).mean
    1.0
    """
    if vectors.shape != reference.shape or vectors.dim() != 2:
        raise ValueError(
            f"drift needs one vector for each image, got {tuple(vectors.shape)} and "
            f"{tuple(reference.shape)}"
        )
    if len(reference) < 3:
        raise ValueError(f"drift needs at least 3 images, got {len(reference)}")
    pruned, unpruned, count = _unit(vectors), _unit(reference), max(NEIGHBORS)
    expected = find_neighbors(unpruned, unpruned, count)
    both, queries = (find_neighbors(pruned, index, count) for index in (pruned, unpruned))
    return Drift(
        (pruned * unpruned).sum(dim=-1),
        {count: recall(both, expected, count) for count in NEIGHBORS},
        {count: recall(queries, expected, count) for count in NEIGHBORS},
    )


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.double(), dim=-1)


def find_neighbors(
    queries: Float[Tensor, "images width"], index: Float[Tensor, "images width"], count: int
) -> Int[Tensor, "images count"]:
    """Return the `count` nearest other images of each query, the nearest first.

    Args:
        queries: Vectors of length 1.
        index: Vectors of length 1, of the same images.
        count: How many; fewer if there are not so many other images.
    """
    return torch.cat(list(_nearest(queries, index, min(count, len(index) - 1))))


def _nearest(queries: Tensor, index: Tensor, count: int) -> Iterator[Tensor]:
    for start in range(0, len(queries), _ROWS):
        cosines = queries[start : start + _ROWS] @ index.T
        rows = torch.arange(len(cosines))
        cosines[rows, rows + start] = -torch.inf
        yield cosines.topk(count, dim=-1).indices


def recall(
    retrieved: Int[Tensor, "images neighbors"],
    expected: Int[Tensor, "images neighbors"],
    count: int,
) -> float:
    """Return the share of the first `count` expected neighbors among the first `count`
    retrieved."""
    count = min(count, expected.shape[1])
    same = retrieved[:, :count].unsqueeze(2) == expected[:, :count].unsqueeze(1)
    return same.any(dim=1).double().mean().item()


def drifts_of(results: Sequence[Result]) -> list[Drift]:
    """Measure the drift of every result from the first one, whose model is unpruned."""
    reference = torch.cat(results[0].outputs)
    return [measure_drift(torch.cat(result.outputs), reference) for result in results]


def nearest_images(result: Result) -> list[int]:
    """Return for each image the one whose vector is nearest, as indices into the result."""
    vectors = _unit(torch.cat(result.outputs))
    return find_neighbors(vectors, vectors, 1)[:, 0].tolist()


def drift_row(
    result: Result, drift: Drift, reference: Result, images: ImageDataset, shown: int = 10
) -> dict[str, Any]:
    """Return one row of results.

    Args:
        result: What was run.
        drift: Of its vectors.
        reference: The unpruned model's result.
        images: For their names.
        shown: How many of the images that moved most to name.
    """
    low, middle, high = result.speedup(reference)
    return {
        "data": Path(images.name).name,
        "images": len(result.index),
        "name": result.contender.name,
        "schedule": result.contender.schedule.one_line(),
        "gmacs": round(result.gmacs(), 6),
        "speedup": round(middle, 4),
        "speedup_quartiles": [round(low, 4), round(high, 4)],
        "images_per_second": round(result.images_per_second, 1),
        "cosine": round(drift.mean, 6),
        "cosine_first_percentile": round(drift.first_percentile, 6),
        **{f"recall_at_{count}": round(share, 5) for count, share in drift.recall.items()},
        **{f"recall_at_{count}_unpruned_index": round(share, 5)
           for count, share in drift.recall_unpruned_index.items()},
        "moved_most": [[images.paths[result.index[at]], round(drift.cosines[at].item(), 5)]
                       for at in drift.moved(shown)],
    }  # fmt: skip
