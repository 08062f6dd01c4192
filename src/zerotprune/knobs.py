"""Knobs: how methods are set to a budget. A dial goes from 0, nothing pruned, to 1, the most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from .cost import Geometry
from .schedule import Schedule, Stage

if TYPE_CHECKING:
    from .method import Method

#: the schedule at a place of the dial; None where no schedule is to be had there
Dial = Callable[[float], Schedule | None]

#: the paper's rounds at its places, which are twelfths of the depth; later ones win a shared block
_ROUNDS = {11: 1, 9: 1, 6: 5, 3: 5, 1: 30}


def paper_form(geometry: Geometry, method: Method) -> Iterator[Dial]:
    """Schedules of the paper's form (Sec. 4.2).

    Stages at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth with 30, 5, 5, 1 and 1 rounds as in the
    paper's ablation, `similar` the same in all of them, and shares that decline uniformly over the
    stages between the first and the last; then, for budgets too small for that, one constant share
    in all stages. The paper's share of similar tokens comes first, then those nearest to it.
    """
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")
    rounds = {
        min(max(round(depth * at / 12), 1), depth - 1): votes for at, votes in _ROUNDS.items()
    }
    usual = round(geometry.patches * 10 / 196)
    counts = sorted(range(2 * usual + 1), key=lambda similar: abs(similar - usual))
    for shares in (_declining, _constant):
        for similar in counts:
            yield partial(_staged, geometry.patches, method, rounds, shares, similar)


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
    rounds: dict[int, int],
    shares: Callable[[int, float], list[float]],
    similar: int,
    cut: float,
) -> Schedule | None:
    """None where Zero-TPrune could not follow: methods that are compared get one form."""
    stages = []
    for block, share in zip(sorted(rounds), shares(len(rounds), cut), strict=True):
        if not round(share, 4) > 0 or similar > patches - patches // 2:
            return None
        stage = Stage(block, round(share, 4), similar, rounds[block])
        patches = stage.kept(patches)
        if patches < 1:
            return None
        stages.append(stage)
    return Schedule(tuple(stages), method)


def spread_evenly(each: float, blocks: int) -> list[int]:
    """Whole numbers that add up to `each` for each block, as evenly as can be."""
    sums = [int(each * block + 1e-9) for block in range(blocks + 1)]
    return [after - before for before, after in pairwise(sums)]
