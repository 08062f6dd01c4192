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

_PLACES = (1, 3, 6, 9, 11)  # twelfths of the depth, where the ablation (Sec. 4.1) has its stages


def dials_of(method: Method, geometry: Geometry) -> Iterable[Dial]:
    """Return the ways to set a method to a budget, the usual one first."""
    dials = method.dials(geometry)
    return paper_form(geometry, method) if dials is None else dials


def paper_form(geometry: Geometry, method: Method) -> Iterator[Dial]:
    """Schedules as the paper's comparisons have them (Sec. 4.2, G.5): of the settings that it
    allows one of about average performance, close to one rate in all stages.

    Stages at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth, one share and one `similar` in all of
    them: 10 of 196 patches, or the nearest count to that with which the budget can be met. Among
    settings drawn under the paper's conditions this one is close to the mean, by accuracy and by
    KL: benchmarks.search.paper_settings. Rounds are left open: a stage's own rule is that of
    Sec. 4.2.
    """
    depth = geometry.depth
    if depth < 2:
        raise ValueError(f"a model of depth {depth} has no place for a stage")
    blocks = _blocks(_PLACES, depth)
    usual = round(geometry.patches * 10 / 196)
    for similar in sorted(range(2 * usual + 1), key=lambda similar: abs(similar - usual)):
        yield partial(_staged, geometry.patches, method, blocks, similar)


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
    return [partial(_staged, geometry.patches, method, blocks, 0)]


def _blocks(places: Iterable[int], depth: int) -> list[int]:
    """The blocks at so many twelfths of the depth; the last one has no stage."""
    return sorted({min(max(round(depth * at / 12), 1), depth - 1) for at in places})


def _staged(
    patches: int, method: Method, blocks: list[int], similar: int, cut: float
) -> Schedule | None:
    """One share and one `similar` in all stages; None where Zero-TPrune could not follow: methods
    that are compared get one form."""
    stages, share = [], round(1 - cut, 4)
    for block in blocks:
        if not share > 0 or similar > patches - patches // 2:
            return None
        stage = Stage(block, share, similar)
        patches = stage.kept(patches)
        if patches < 1:
            return None
        stages.append(stage)
    return Schedule(tuple(stages), method)


def merge_evenly(
    geometry: Geometry, method: Method, cut: float, inflect: float = 0.0, most: float = 0.5
) -> Schedule:
    """A stage at every block that merges the same number of tokens, at most the share `most` of the
    patches; or with `inflect` a number that grows or falls along a line, with this as its mean. No
    stage can merge more than half of its tokens."""
    left, stages = geometry.patches, []
    counts = spread_evenly(cut * most * left, geometry.depth, inflect)
    for block, count in enumerate(counts, start=1):
        stages.append(Stage(block, 1.0, min(count, left // 2)))
        left -= stages[-1].similar
    return Schedule(tuple(stages), method)


def spread_evenly(each: float, blocks: int, inflect: float = 0.0) -> list[int]:
    """Whole numbers that add up to `each` for each block, as evenly as can be; with `inflect` they
    go along a line from (1 − inflect) to (1 + inflect) times that.

    >>> spread_evenly(10, 5), spread_evenly(10, 5, inflect=1), spread_evenly(10, 5, inflect=-0.5)
    ([10, 10, 10, 10, 10], [0, 5, 10, 15, 20], [15, 12, 10, 8, 5])
    """
    lean = inflect / max(blocks - 1, 1)
    steps = (block + lean * block * (block - blocks) for block in range(blocks + 1))
    total = int(each * blocks + 1e-9)  # which rounding must not let an earlier sum exceed
    sums = [min(int(each * step + 1e-9), total) for step in steps]
    return [after - before for before, after in pairwise(sums)]
