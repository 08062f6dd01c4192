"""Every method by its name, and set to a budget by its own knob: the ground for fair comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..cost import TOLERANCE, Convention, Geometry
from ..methods import ATS, DiffRate, EViT, Method, Slicing, ToMe, TopK, ZeroTPrune
from ..plan import Plan
from ..pruning import prune_, restore_, schedule_for
from ..schedule import Schedule, Stage
from ..tracing import survivors


@dataclass(frozen=True)
class Contender:
    """One way to run the model. A schedule without stages is the unpruned model."""

    name: str
    schedule: Schedule = field(default_factory=Schedule)
    method: Method = field(default_factory=ZeroTPrune)


#: methods that keep as many tokens as Zero-TPrune does by the same schedule
_ON_SCHEDULE: dict[str, Method] = {
    "zero-tprune": ZeroTPrune(),
    "zero-tprune-uni": ZeroTPrune(start="uniform"),
    "cls-attention": TopK("cls"),
    "average-attention": TopK("average"),
    "accumulated-attention": TopK("accumulated"),
    "random": TopK("random"),
    "slicing": Slicing(),
}

Knob = Callable[[Geometry, float], tuple[Schedule, Method]]


def _merging(method: Method) -> Knob:
    """ToMe's r, the same in all blocks as nearly as whole numbers allow."""

    def turn(geometry: Geometry, cut: float) -> tuple[Schedule, Method]:
        each = cut * geometry.patches / 2
        counts = _spread(each, geometry.depth)
        stages = (Stage(block, 1.0, count) for block, count in enumerate(counts, start=1))
        return Schedule(tuple(stages)), method

    return turn


def _fusing(geometry: Geometry, cut: float) -> tuple[Schedule, Method]:
    """EViT's keep rate, at its places: after 4/12, 7/12 and 10/12 of the blocks."""
    places = {max(1, round(geometry.depth * at / 12)) for at in (4, 7, 10)}
    return Schedule(tuple(Stage(block, max(1 - cut, 1e-3)) for block in places)), EViT()


def _sampling(first: int) -> Knob:
    """ATS's number of samples, in every block from the first one on. It may exceed the number of
    tokens by far: a token that is drawn again and again counts once."""

    def turn(geometry: Geometry, cut: float) -> tuple[Schedule, Method]:
        samples = round((64 * geometry.patches) ** (1 - cut))
        blocks = range(first, geometry.depth)
        return Schedule(tuple(Stage(block, 0.5) for block in blocks)), ATS(samples)

    return turn


def _pruning_and_merging(geometry: Geometry, cut: float) -> tuple[Schedule, Method]:
    """DiffRate's counts, half pruned and half merged, the same in all blocks."""
    each, patches, stages = cut * geometry.patches / 2, geometry.patches, []
    pruned = _spread(each / 2, geometry.depth)
    merged = _spread(each / 2, geometry.depth)
    for block in range(1, geometry.depth + 1):
        prune = min(pruned[block - 1], patches - 1)
        merge = min(merged[block - 1], patches - prune - 1)
        stages.append(Stage(block, (patches - prune) / patches, merge))
        patches -= prune + merge
    return Schedule(tuple(stages)), DiffRate()


def _spread(each: float, blocks: int) -> list[int]:
    """Whole numbers that add up to `each` for each block, as evenly as can be."""
    sums = [int(each * block + 1e-9) for block in range(blocks + 1)]
    return [after - before for before, after in pairwise(sums)]


#: methods with a knob of their own, as they are for a schedule of the user's
_WITH_KNOB: dict[str, Method] = {
    "tome": ToMe(),
    "tome-uni": ToMe(proportional=False),
    "evit": EViT(),
    "diffrate": DiffRate(),
    "ats": ATS(),
}

METHODS = (*_ON_SCHEDULE, *_WITH_KNOB)


def _knobs(name: str, depth: int) -> list[Knob]:
    """What a method can be set by; where it can be in several ways, the usual one first."""
    if name == "ats":
        # Where attention is sharp it prunes more than it is asked to; then it has to start later.
        return [_sampling(first) for first in range(depth // 4 + 1, depth)]
    if name == "evit":
        return [_fusing]
    return [_pruning_and_merging if name == "diffrate" else _merging(_WITH_KNOB[name])]


def method_named(name: str) -> Method:
    """The method with its defaults, for a schedule of the user's own."""
    known = _ON_SCHEDULE | _WITH_KNOB
    if name not in known:
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
    return known[name]


def contender(
    name: str,
    model: nn.Module,
    budget: float,
    images: Tensor | None = None,
    convention: Convention = "full",
) -> Contender:
    """The method set to a budget in GMACs, met within 1 %, by its own knob alone: schedules that
    were searched for one method would not be equal terms.

    `images` are needed for a method whose cost depends on the pictures.
    """
    method = method_named(name)
    if name in _ON_SCHEDULE:
        schedule = schedule_for(
            model, gmacs=budget, method=method, convention=convention, tuned=False
        )
        return Contender(name, schedule, method)
    geometry = backbone(model).geometry

    def price(schedule: Schedule, method: Method) -> float:
        plan = Plan(schedule, method, geometry)
        plan.check()
        if not method.adaptive:
            return plan.gmacs(convention)
        if images is None:
            raise ValueError(f"the cost of {name} depends on the pictures: give some to measure it")
        return measured_gmacs(model, plan, images, convention)

    for knob in _knobs(name, geometry.depth):
        found = _bisected(name, partial(knob, geometry), price, budget)
        if found is not None:
            return found
    raise ValueError(f"{name} cannot meet a budget of {budget:.4g} GMACs within 1 %")


def _bisected(
    name: str,
    turn: Callable[[float], tuple[Schedule, Method]],
    price: Callable[[Schedule, Method], float],
    budget: float,
) -> Contender | None:
    if price(*turn(0.0)) < (1 - TOLERANCE) * budget:
        return None
    low, high = 0.0, 1.0
    best, missed = None, float("inf")
    for _ in range(18):
        cut = (low + high) / 2
        schedule, method = turn(cut)
        try:
            found = price(schedule, method)
        except ValueError:  # so much that some stage has no token left
            high = cut
            continue
        if abs(found - budget) < missed:
            best, missed = Contender(name, schedule, method), abs(found - budget)
        if missed <= TOLERANCE / 5 * budget:
            break
        if found >= budget:
            low = cut
        else:
            high = cut
    return best if missed <= TOLERANCE * budget else None


@torch.inference_mode()
def measured_gmacs(
    model: nn.Module, plan: Plan, images: Tensor, convention: Convention = "full"
) -> float:
    """The mean cost over pictures that keep different numbers of tokens."""
    prune_(model, plan.schedule, plan.method)
    try:
        with survivors(model) as calls:
            model(images)
    finally:
        restore_(model)
    return mean_gmacs(plan, calls, convention)


def mean_gmacs(plan: Plan, calls: list[list[Tensor]], convention: Convention = "full") -> float:
    """The mean cost of pictures of which `survivors` has noted what each stage left."""
    pictures = [row for call in calls for row in torch.stack(call, dim=1).tolist()]
    costs = {tuple(row): plan.gmacs(convention, row) for row in pictures}
    return sum(costs[tuple(row)] for row in pictures) / len(pictures)
