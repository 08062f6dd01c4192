"""Find the schedule for a budget: turn the dial of a method until the schedule costs the target.

A price is the cost of a schedule in the unit of the target: GMACs by formula, or measured on images
for methods whose number of tokens depends on the image. The solver works with any price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..cost import Compute, Convention, Geometry
from ..dials import Dial, dials_of
from ..method import Method
from ..methods import DEFAULT, DENSE, name_of, resolve
from ..plan import Plan
from ..schedule import Budget, Schedule
from ..surgery import attach, restore_
from ..tokens import Outputs
from ..tracing import check_images, survivors
from .tuned import tuned_at

#: how far a schedule's cost may be from its budget, relative to the budget
TOLERANCE = 0.01

#: the cost of a schedule, in the unit of the target; None if the model cannot follow it
Price = Callable[[Schedule], float | None]
Setting = TypeVar("Setting")


def schedule_for(
    model: nn.Module,
    *,
    cost: float | None = None,
    gmacs: float | None = None,
    speedup: float | None = None,
    example: Tensor | None = None,
    method: Method | str | None = None,
    images: Tensor | None = None,
    convention: Convention = "full",
    tuned: bool = False,
    outputs: Outputs = "tokens",
) -> Schedule:
    """Return a method's schedule for a budget, met within 1 %.

    Args:
        model: The model to prune; it is left unpruned.
        cost: The budget as a share of the unpruned model's compute.
        gmacs: The budget in GMACs.
        speedup: The budget as a speedup over the unpruned model, measured on `example` here and
            now, and met within 5 %. Give one of the three.
        example: A batch of images to measure the speed on, on the model's device.
        method: A method or its name. Default: Fold, which ranks by received attention alone if
            `outputs` is "grid".
        images: A batch to measure the cost on, for methods whose cost depends on the images.
        convention: How GMACs are counted: "full" counts everything, "paper" as the paper does.
        tuned: Return the schedule that was searched for this model and budget (`zerotprune info`
            lists them), instead of the method's form.
        outputs: As for `prune_`: restoring the grid may have a cost.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> schedule_for(model, cost=0.7, method="tome").stages[-1]
    Stage(block=12, keep=1.0, similar=23, rounds=None)
    """
    if speedup is not None:
        if cost is not None or gmacs is not None:
            raise ValueError("give one budget: cost, gmacs or speedup")
        cost = _cost_at(model, speedup, example, method)
    budget = Budget(cost, gmacs, convention)
    if method is None:
        method = DENSE if outputs == "grid" else DEFAULT
    method = resolve(method)
    geometry = backbone(model).geometry
    unpruned = Plan(Schedule(), geometry).gmacs(convention)
    target = budget.to_gmacs(unpruned)
    if tuned:
        return _tuned_schedule(model, method, target, unpruned)
    if abs(target - unpruned) <= TOLERANCE / 2 * unpruned:
        schedule = Schedule((), method)
    else:
        price = _price_in_gmacs(model, method, geometry, images, convention, outputs)
        schedule = solve(method, geometry, target, unpruned, price, outputs)
    return replace(schedule, budget=budget, patches=geometry.patches)


def fit(schedule: Schedule, geometry: Geometry, outputs: Outputs = "tokens") -> Schedule:
    """Return the schedule for a model of this geometry: as it is, or solved again for its budget if
    it was solved for another number of patches.

    A budget in GMACs above the cost of the unpruned model prunes nothing.
    """
    budget, method = schedule.budget, schedule.method
    if budget is None or schedule.patches == geometry.patches:
        return schedule
    if method.adaptive:
        raise ValueError(
            f"the cost of {name_of(method)} depends on the images, and was measured at "
            f"{schedule.patches} patches: solve it at {geometry.patches} with schedule_for"
        )
    convention = budget.convention
    unpruned = Plan(Schedule(), geometry).gmacs(convention)
    target = budget.to_gmacs(unpruned)
    if target >= (1 - TOLERANCE / 2) * unpruned:
        solved = Schedule((), method)
    else:
        solved = solve(
            method, geometry, target, unpruned,
            lambda schedule: Plan(schedule, geometry, outputs).price(convention), outputs,
        )  # fmt: skip
    return replace(solved, budget=budget, patches=geometry.patches)


def solve_at(plan: Plan, patches: int) -> Schedule:
    """Return the schedule of a plan solved again for images of this many patches."""
    schedule, budget = plan.schedule, plan.schedule.budget
    if budget is None:
        raise ValueError(
            "its schedule has no budget to solve again; prune it to a budget, such as cost=0.65"
        )
    if not schedule.method.adaptive:
        unpruned = Plan(Schedule(), plan.geometry).gmacs(budget.convention)
        cost, target = plan.gmacs(budget.convention), budget.to_gmacs(unpruned)
        if abs(cost - target) > TOLERANCE * target:
            raise ValueError(
                f"its stages cost {cost:.4g} GMACs, not the {target:.4g} of the budget of its "
                "schedule; solve it for this model with schedule_for"
            )
    return fit(schedule, plan.geometry.at(patches), plan.outputs)


def _cost_at(
    model: nn.Module, speedup: float, example: Tensor | None, method: Method | str | None
) -> float:
    from .speed import TimeBudget, cost_for  # imports this module

    if example is None:
        raise ValueError("speedup is measured on a batch of images: give example=images")
    check_images("example", example)
    return cost_for(model, TimeBudget(speedup), example, method)[0]


def _price_in_gmacs(
    model: nn.Module,
    method: Method,
    geometry: Geometry,
    images: Tensor | None,
    convention: Convention,
    outputs: Outputs,
) -> Price:
    if method.adaptive and images is None:
        raise ValueError(
            f"the cost of {name_of(method)} depends on the images: give some to measure it on, "
            "schedule_for(…, images=…)"
        )
    if method.adaptive:
        check_images("images", images)

    def price(schedule: Schedule) -> float | None:
        gmacs = Plan(schedule, geometry, outputs).price(convention)
        if gmacs is None or images is None or not method.adaptive:
            return gmacs
        return measured_gmacs(model, schedule, images, convention, outputs)

    return price


def _tuned_schedule(model: nn.Module, method: Method, gmacs: float, unpruned: float) -> Schedule:
    available = tuned_at(model, method)
    for tuned in available:
        if abs(tuned.gmacs - gmacs) <= TOLERANCE * gmacs:
            return tuned.schedule
    costs = ", ".join(
        f"{tuned.gmacs / unpruned:.2f} ({tuned.gmacs:g} GMACs)" for tuned in available
    )
    others = {name_of(tuned.schedule.method) for tuned in tuned_at(model)}
    known = f"there are some at cost {costs}" if costs else "there is none at any cost"
    if others and not available:
        known += f", but there are some of {', '.join(sorted(others))}"
    raise ValueError(
        f"no schedule of {name_of(method)} was searched for this model at cost "
        f"{gmacs / unpruned:.2f} ({gmacs:.4g} GMACs); {known}"
    )


def solve(
    method: Method,
    geometry: Geometry,
    target: float,
    unpruned: float,
    price: Price,
    outputs: Outputs = "tokens",
) -> Schedule:
    """Return the schedule of the first dial that comes within half the tolerance of the target, or
    the nearest of all dials if that is within the tolerance; else raise ValueError.

    Args:
        method: The method to set.
        geometry: Of the model.
        target: The cost that the schedule should have.
        unpruned: The cost of the unpruned model, in the same unit.
        price: Returns the cost of a schedule, in the same unit.
        outputs: As for `prune_`.
    """
    best: Hit[Schedule] | None = None
    price = cache(price)  # near its target, a dial gives the same few schedules again and again
    # Below the error of a measured cost, more steps are pointless.
    close_enough, reach = (TOLERANCE / 5, 0.0) if method.adaptive else (0.0, TOLERANCE)
    for dial in dials_of(method, geometry):
        best = bisect(
            _priced(dial, price), target, close_enough=close_enough, reach=reach, best=best
        )
        if best is not None and best.miss <= TOLERANCE / 2:
            return best.setting
    if best is not None and best.miss <= TOLERANCE:
        return best.setting
    ends = [best]
    if not method.adaptive:
        ends = [bisect(_priced(dial, price), 0.0) for dial in dials_of(method, geometry)]
    lowest = [end.value for end in ends if end is not None and end.setting.stages]
    if best is None or not lowest:
        raise ValueError(_why_none(method, geometry, outputs))
    raise ValueError(_why_unmet(method, target, unpruned, min(lowest), best.value))


def _priced(dial: Dial, price: Price) -> Callable[[float], tuple[Schedule, float] | None]:
    """Return a dial that returns the cost of its schedule too."""

    def turn(position: float) -> tuple[Schedule, float] | None:
        schedule = dial(position)
        cost = None if schedule is None else price(schedule)
        return None if schedule is None or cost is None else (schedule, cost)

    return turn


def _why_none(method: Method, geometry: Geometry, outputs: Outputs) -> str:
    """Say why the method has no schedule for this model at all."""
    for dial in dials_of(method, geometry):
        for position in (0.5, 0.0):
            schedule = dial(position)
            if schedule is not None:
                try:
                    Plan(schedule, geometry, outputs).check()
                except ValueError as error:
                    return str(error)
    return f"{name_of(method)} has no schedule for this model"


def _why_unmet(
    method: Method, target: float, unpruned: float, lowest: float, nearest: float
) -> str:
    reason = (
        f"a budget of {target:.4g} GMACs cannot be met by {name_of(method)}: this model takes "
        f"{unpruned:.4g} unpruned and at least {lowest:.4g} pruned"
    )
    if lowest < target < unpruned:
        reason += f"; with so few tokens the nearest is {nearest:.4g}"
    return reason


@dataclass(frozen=True)
class Hit(Generic[Setting]):
    """A setting, its value, and how far that is from the target, relative to the target."""

    setting: Setting
    value: float
    miss: float


def bisect(
    turn: Callable[[float], tuple[Setting, float] | None],
    target: float,
    *,
    steps: int = 20,
    close_enough: float = 0.0,
    reach: float = TOLERANCE,
    best: Hit[Setting] | None = None,
) -> Hit[Setting] | None:
    """Find the setting whose value is nearest to the target, by turning a dial from 0 to 1.

    Args:
        turn: Returns the setting at a position of the dial and its value, which falls as the dial
            rises; None, if there is no setting, counts as too far.
        target: The value to find.
        steps: The most halvings of the dial.
        close_enough: Stop once the miss is at most this.
        reach: Stop if even the far end of the dial, which is tried second, is above the target by
            more than this, relative to the target.
        best: The nearest so far, from other dials.
    """
    low, high = 0.0, 1.0
    for step in range(steps + 2):
        at_end = step == 1
        middle = (low + high) / 2 if step else 0.0
        setting = turn(1 - 2**-steps if at_end else middle)
        value = -inf if setting is None else setting[1]
        miss = abs(value - target) / max(abs(target), 1e-12)
        if at_end and value <= (1 + reach) * target and miss > close_enough:
            continue  # the target is before the end
        if setting is not None and (best is None or miss < best.miss):
            best = Hit(*setting, miss)
        if at_end or (best is not None and best.miss <= close_enough):
            return best
        if value >= target:
            low = middle
        elif step:
            high = middle
        elif setting is not None:
            return best  # the highest value of this dial is already too low
    return best


@torch.inference_mode()
def measured_gmacs(
    model: nn.Module,
    schedule: Schedule,
    images: Tensor,
    convention: Convention = "full",
    outputs: Outputs = "tokens",
) -> float:
    """Measure the mean cost over images. The model is unpruned afterwards."""
    attach(model, schedule)
    try:
        with survivors(model) as calls:
            model(images)
    finally:
        restore_(model)
    return mean_gmacs(Plan(schedule, backbone(model).geometry, outputs), calls, convention)


def mean_gmacs(
    plan: Plan,
    calls: list[list[Tensor]],
    convention: Convention = "full",
    compute: Compute = "all",
) -> float:
    """Return the mean cost over images, from the tokens that `survivors` counted in each call."""
    counts = [tuple(row) for call in calls for row in torch.stack(call, dim=1).tolist()]
    costs = {row: plan.gmacs(convention, row, compute) for row in set(counts)}
    return sum(costs[row] for row in counts) / len(counts)
