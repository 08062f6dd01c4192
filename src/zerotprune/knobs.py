"""Knobs: how methods are set to a budget. A dial goes from 0, nothing pruned, to 1, the most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from .cost import Geometry
from .schedule import Schedule, Stage, share_that_keeps

if TYPE_CHECKING:
    from .method import Method

#: the schedule at a place of the dial; None where no schedule is to be had there
Dial = Callable[[float], Schedule | None]

_PLACES = (1, 3, 6, 9, 11)  # the paper's, which are twelfths of the depth


def paper_form(geometry: Geometry, method: Method) -> Iterator[Dial]:
    """Schedules of the paper's form (Sec. 4.2).

    Stages at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth, `similar` the same in all of them, and
    shares that decline uniformly over the stages between the first and the last; then, for budgets
    too small for that, one constant share in all stages. The paper's share of similar tokens comes
    first, then those nearest to it. Rounds are left open: a stage's own rule is that of Sec. 4.2.
    """
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")
    blocks = sorted({min(max(round(depth * at / 12), 1), depth - 1) for at in _PLACES})
    usual = round(geometry.patches * 10 / 196)
    counts = sorted(range(2 * usual + 1), key=lambda similar: abs(similar - usual))
    for shares in (_declining, _constant):
        for similar in counts:
            yield partial(_staged, geometry.patches, method, blocks, shares, similar)


def early_form(geometry: Geometry, method: Method) -> list[Dial]:
    """Schedules of many small stages, S-stages first: see `early_shares`."""
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")

    def turn(cut: float) -> Schedule:
        left, stages = geometry.patches, []
        for block, (similar, off) in enumerate(early_shares(cut, depth), start=1):
            alike = min(round(similar * left), left // 2)
            kept = max(1, round((1 - off) * (left - alike)))
            stages.append(Stage(block, share_that_keeps(kept, left - alike), alike))
            left = kept
        return Schedule(tuple(stage for stage in stages if stage.prunes), method)

    return [turn]


def early_shares(cut: float, depth: int) -> list[tuple[float, float]]:
    """Of each block but the last, which share of its tokens goes for being similar, and which share
    for being unimportant; `cut` goes from 0, none, to 1, the most.

    One share of similar tokens in each block of the first 5/12, a quarter of it, of unimportant
    ones, in each block after that. Chosen for twelve blocks, by the divergence of two models from
    themselves.

    >>> [(round(similar, 2), round(off, 2)) for similar, off in early_shares(0.2, 12)][3:7]
    [(0.1, 0.0), (0.1, 0.0), (0.0, 0.03), (0.0, 0.03)]
    """
    share = 1 - (1 - 0.5 * cut) ** (12 / depth)
    early = max(1, round(5 * depth / 12))
    return [(share, 0.0) if block <= early else (0.0, share / 4) for block in range(1, depth)]


def _declining(stages: int, cut: float) -> list[float]:
    """Shares kept, from all (cut 0) down to 0.4 in the last stage that cuts (cut 1).

    Below that a constant share is more accurate: tried with DeiT-Ti at half of its cost.
    """
    inner = stages - 2 if stages > 3 else stages
    shares = [1 - 0.6 * cut * step / inner for step in range(1, inner + 1)]
    return [1.0, *shares, 1.0] if stages > 3 else shares


def _constant(stages: int, cut: float) -> list[float]:
    return [1 - cut] * stages


def _staged(
    patches: int,
    method: Method,
    blocks: list[int],
    shares: Callable[[int, float], list[float]],
    similar: int,
    cut: float,
) -> Schedule | None:
    """None where Zero-TPrune could not follow: methods that are compared get one form."""
    stages = []
    for block, share in zip(blocks, shares(len(blocks), cut), strict=True):
        if not round(share, 4) > 0 or similar > patches - patches // 2:
            return None
        stage = Stage(block, round(share, 4), similar)
        patches = stage.kept(patches)
        if patches < 1:
            return None
        stages.append(stage)
    return Schedule(tuple(stages), method)


def spread_evenly(each: float, blocks: int) -> list[int]:
    """Whole numbers that add up to `each` for each block, as evenly as can be."""
    sums = [int(each * block + 1e-9) for block in range(blocks + 1)]
    return [after - before for before, after in pairwise(sums)]
