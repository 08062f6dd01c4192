"""Dials: set a method to a budget. A dial goes from 0, which prunes nothing, to 1, the most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise

from .cost import Geometry
from .method import Method
from .schedule import Schedule, Stage, share_that_keeps

#: position of the dial → schedule; None if there is no schedule at that position
Dial = Callable[[float], Schedule | None]

#: twelfths of the depth, where the paper's ablation (Sec. 4.1) has its stages
_PAPER_BLOCKS = (1, 3, 6, 9, 11)


def dials_of(method: Method, geometry: Geometry) -> Iterable[Dial]:
    """Return the dials of a method, the preferred one first."""
    dials = method.dials(geometry)
    return paper_form(geometry, method) if dials is None else dials


def paper_form(geometry: Geometry, method: Method) -> Iterator[Dial]:
    """Yield dials for schedules as in the paper's comparisons (Sec. 4.2, G.5).

    Stages are at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth, all with one `keep` and one
    `similar`: 10 of 196 patches, or the count nearest to that with which the budget can be met.
    Among settings drawn under the paper's conditions this one is close to the mean, by accuracy and
    by KL (benchmarks.search.paper_settings). Rounds are the default of `Stage`, the rule of
    Sec. 4.2.
    """
    blocks = _blocks(_PAPER_BLOCKS, geometry.depth)
    usual = round(geometry.patches * 10 / 196)
    for similar in sorted(range(2 * usual + 1), key=lambda similar: abs(similar - usual)):
        yield partial(_staged, geometry.patches, method, blocks, similar)


def early_form(geometry: Geometry, method: Method, i_first: bool = False) -> list[Dial]:
    """Return the dial of our own form: prune similar tokens early, unimportant ones late. Of 76
    forms, two models diverged least with it, at high budgets and at half the cost.

    Two S-stages, at 2/12 and 4/12 of the depth, prune the same share of their tokens; two I-stages,
    at 7/12 and 10/12, prune three quarters of that share. An S-stage can prune half of its tokens
    at most: beyond that it prunes by importance as well, with `i_first` before S, where the half is
    of what is left.
    """
    early, late = (_blocks(twelfths, geometry.depth) for twelfths in ((2, 4), (7, 10)))

    def turn(cut: float) -> Schedule:
        left, stages = geometry.patches, []
        for block in sorted({*early, *late}):
            kept = max(1, round((1 - cut * (1 if block in early else 0.75)) * left))
            similar = min(left - kept, kept if i_first else left // 2) if block in early else 0
            share = (kept + similar, left) if i_first else (kept, left - similar)
            stages.append(Stage(block, share_that_keeps(*share), similar))
            left = kept
        return Schedule(tuple(stage for stage in stages if stage.prunes), method)

    return [turn]


def importance_form(geometry: Geometry, method: Method) -> list[Dial]:
    """Return the dial of I-stages alone, for training, as in the paper: one `keep` at 3/12, 6/12
    and 9/12 of the depth, where DynamicViT has its stages."""
    blocks = _blocks((3, 6, 9), geometry.depth)
    return [partial(_staged, geometry.patches, method, blocks, 0)]


def _blocks(twelfths: Iterable[int], depth: int) -> list[int]:
    """Return the blocks at these twelfths of the depth, without the last block."""
    if depth < 2:
        raise ValueError(f"a schedule needs at least 2 blocks, this model has {depth}")
    return sorted({min(max(round(depth * twelfth / 12), 1), depth - 1) for twelfth in twelfths})


def _staged(
    patches: int, method: Method, blocks: list[int], similar: int, cut: float
) -> Schedule | None:
    """Return a schedule with one `keep` and one `similar`; None if Zero-TPrune could not follow it,
    so that methods are compared by the same schedules."""
    stages, keep = [], round(1 - cut, 4)
    for block in blocks:
        if not keep > 0 or similar > patches - patches // 2:
            return None
        stage = Stage(block, keep, similar)
        patches = stage.kept(patches)
        if patches < 1:
            return None
        stages.append(stage)
    return Schedule(tuple(stages), method)


def merge_evenly(
    geometry: Geometry, method: Method, cut: float, inflect: float = 0.0, most: float = 0.5
) -> Schedule:
    """Return a schedule that merges the same number of tokens at every block, but no more than half
    of those there.

    Args:
        geometry: Of the model.
        method: The method that merges.
        cut: The position of the dial.
        inflect: As for `spread_evenly`.
        most: The share of the patches that a block merges at position 1.
    """
    left, stages = geometry.patches, []
    counts = spread_evenly(cut * most * left, geometry.depth, inflect)
    for block, count in enumerate(counts, start=1):
        stages.append(Stage(block, 1.0, min(count, left // 2)))
        left -= stages[-1].similar
    return Schedule(tuple(stages), method)


def spread_evenly(mean: float, blocks: int, inflect: float = 0.0) -> list[int]:
    """Return one whole number for each block, as equal as possible, with this mean.

    Args:
        mean: Of the numbers.
        blocks: How many numbers.
        inflect: Let the numbers grow (or fall, if negative) along a line, from (1 − inflect) to
            (1 + inflect) times the mean.

    >>> spread_evenly(10, 5), spread_evenly(10, 5, inflect=1), spread_evenly(10, 5, inflect=-0.5)
    ([10, 10, 10, 10, 10], [0, 5, 10, 15, 20], [15, 12, 10, 8, 5])
    """
    lean = inflect / max(blocks - 1, 1)
    steps = (block + lean * block * (block - blocks) for block in range(blocks + 1))
    total = int(mean * blocks + 1e-9)  # earlier sums may exceed it by rounding
    sums = [min(int(mean * step + 1e-9), total) for step in steps]
    return [after - before for before, after in pairwise(sums)]
