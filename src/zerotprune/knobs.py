"""Knobs: how methods are set to a budget. A dial goes from 0, nothing pruned, to 1, the most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise

from .cost import Geometry
from .method import Method
from .schedule import Schedule, Stage, share_that_keeps

#: the schedule at a place of the dial; None where no schedule is to be had there
Dial = Callable[[float], Schedule | None]

_PLACES = (1, 3, 6, 9, 11)  # twelfths of the depth: the blocks of the paper's ablation (Sec. 4.1)


def dials_of(method: Method, geometry: Geometry) -> Iterable[Dial]:
    """Return the ways to set a method to a budget, the usual one first."""
    dials = method.dials(geometry)
    return paper_form(geometry, method) if dials is None else dials


def paper_form(geometry: Geometry, method: Method) -> Iterator[Dial]:
    """Schedules that obey Sec. 4.2 of the paper, which leaves the blocks free: these are its
    ablation's.

    Stages at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth, `similar` the same in all of them, and
    shares that decline uniformly over the stages between the first and the last; then, for budgets
    too small for that, one constant share in all stages. The paper's share of similar tokens comes
    first, then those nearest to it. Rounds are left open: a stage's own rule is that of Sec. 4.2.
    """
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")
    blocks = _blocks(_PLACES, depth)
    usual = round(geometry.patches * 10 / 196)
    counts = sorted(range(2 * usual + 1), key=lambda similar: abs(similar - usual))
    for shares in (_declining, _constant):
        for similar in counts:
            yield partial(_staged, geometry.patches, method, blocks, shares, similar)


def early_form(geometry: Geometry, method: Method, i_first: bool = False) -> list[Dial]:
    """Schedules that prune similar tokens early, our own: of 76 forms the one that let two models
    diverge least from themselves unpruned, where little is pruned and at half of the cost.

    The same share of the tokens goes for being similar at 2/12 and 4/12 of the depth, and three
    quarters of it for being unimportant at 7/12 and 10/12. An S-stage can take half of the tokens
    at most; where more is to go, the rest of it goes by importance, and with `i_first` before it:
    then the half is that of what is left.
    """
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")
    early, late = (_blocks(places, depth) for places in ((2, 4), (7, 10)))

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
    """Schedules of I-stages alone, for training: the paper leaves the S-stage out of a model that
    is trained. One share at 3/12, 6/12 and 9/12 of the depth, where DynamicViT has its stages."""
    if geometry.depth < 2:
        raise ValueError(f"a model of depth {geometry.depth} has no place for a stage")
    blocks = _blocks((3, 6, 9), geometry.depth)
    return [partial(_staged, geometry.patches, method, blocks, _constant, 0)]


def _blocks(places: Iterable[int], depth: int) -> list[int]:
    """The blocks at so many twelfths of the depth; the last one has no stage."""
    return sorted({min(max(round(depth * at / 12), 1), depth - 1) for at in places})


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
