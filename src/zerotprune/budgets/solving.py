"""From a budget to a schedule: turn a method's dial until the schedule costs what was asked for.

A budget is a target, and a price says what a schedule costs in the target's unit: GMACs by formula,
or measured on images by methods that keep different numbers of tokens for different images.
Everything below `schedule_for` works with any such pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..cost import Compute, Convention, Geometry
from ..grid import Outputs
from ..knobs import Dial, dials_of
from ..method import Method
from ..methods import DEFAULT, DENSE, name_of, resolve
from ..plan import Plan
from ..schedule import Budget, Schedule
from ..surgery import attach, restore_
from ..tracing import survivors
from .tuned import tuned_at

#: how far a schedule's cost may be from its budget, relative to the budget
TOLERANCE = 0.01

#: what a schedule costs, in the unit of the target; None if the model cannot follow it
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
        speedup: The budget as times the unpruned model's speed, measured on `example` here and
            now, and met within 5 %. Give one of the three.
        example: A batch of images to measure the speed on, on the model's device.
        method: A method or its name. Default: Fold, which goes by received attention alone if
            `outputs` is "grid".
        images: A batch to measure the cost on, for methods whose cost depends on the images.
        convention: How GMACs are counted: "full" counts everything, "paper" as the paper does.
        tuned: Return the schedule that was searched for this very model and budget instead of the
            method's form (`zerotprune info` lists those there are).
        outputs: As for `prune_`: giving the grid back may cost something.

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
    """Return the schedule for a model of this geometry: as it is, or solved anew for its budget if
    it was solved for another number of patches.

    A budget in GMACs that the unpruned model does not spend at all prunes nothing.
    """
    budget, method = schedule.budget, schedule.method
    if budget is None or schedule.patches == geometry.patches:
        return schedule
    if method.adaptive:
        raise ValueError(
            f"the cost of {name_of(method)} depends on the images, and was measured on some of "
            f"{schedule.patches} patches: solve it for {geometry.patches} with schedule_for"
        )
    convention = budget.convention
    unpruned = Plan(Schedule(), geometry).gmacs(convention)
    target = budget.to_gmacs(unpruned)
    if target >= (1 - TOLERANCE / 2) * unpruned:
        solved = Schedule((), method)
    else:
        solved = solve(
            method, geometry, target, unpruned,
            lambda each: Plan(each, geometry, outputs).price(convention), outputs,
        )  # fmt: skip
    return replace(solved, budget=budget, patches=geometry.patches)


def solve_at(plan: Plan, patches: int) -> Schedule:
    """Return a plan's schedule solved anew for images of so many patches, see `sizes`."""
    schedule, budget = plan.schedule, plan.schedule.budget
    if budget is None:
        raise ValueError(
            "its stages have no budget that they could be solved for anew; prune it by one, such "
            "as cost=0.65"
        )
    if not schedule.method.adaptive:
        unpruned = Plan(Schedule(), plan.geometry).gmacs(budget.convention)
        cost, wanted = plan.gmacs(budget.convention), budget.to_gmacs(unpruned)
        if abs(cost - wanted) > TOLERANCE * wanted:
            raise ValueError(
                f"its stages cost {cost:.4g} GMACs, not the {wanted:.4g} of the budget that they "
                "are said to be solved for; solve them for this model with schedule_for"
            )
    return fit(schedule, plan.geometry.at(patches), plan.outputs)


def _cost_at(
    model: nn.Module, speedup: float, example: Tensor | None, method: Method | str | None
) -> float:
    from .speed import TimeBudget, cost_for  # which solves for costs by `schedule_for`

    if example is None:
        raise ValueError("speedup is measured: give a batch of images, example=images")
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
            f"the cost of {name_of(method)} depends on the images: give some to measure it, "
            "schedule_for(…, images=…)"
        )

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
    there_is = f"there are some at cost {costs}" if costs else "there is none at all"
    if others and not available:
        there_is += f", but there are some of {', '.join(sorted(others))}"
    raise ValueError(
        f"no schedule of {name_of(method)} was searched for this model at cost "
        f"{gmacs / unpruned:.2f} ({gmacs:.4g} GMACs); {there_is}"
    )


def solve(
    method: Method,
    geometry: Geometry,
    target: float,
    unpruned: float,
    price: Price,
    outputs: Outputs = "tokens",
) -> Schedule:
    """Return the schedule of the method's first dial that comes within half of the tolerance of
    the target, or else the nearest of all dials; raise ValueError if none is within it.

    Args:
        target: What the schedule is to cost.
        unpruned: What the unpruned model costs, in the same unit.
        price: What a schedule costs, in the same unit.
    """
    best: Hit[Schedule] | None = None
    # A measured cost has an error that makes more steps pointless.
    close_enough = TOLERANCE / 5 if method.adaptive else 0.0
    for dial in dials_of(method, geometry):
        best = bisect(
            _priced(dial, price),
            target,
            close_enough=close_enough,
            best=best,
            expensive=method.adaptive,
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
    """Return the dial with the cost of its schedules beside them."""

    def turn(position: float) -> tuple[Schedule, float] | None:
        schedule = dial(position)
        cost = None if schedule is None else price(schedule)
        return None if schedule is None or cost is None else (schedule, cost)

    return turn


def _why_none(method: Method, geometry: Geometry, outputs: Outputs) -> str:
    """Say what keeps the method from this model altogether."""
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
        f"{unpruned:.4g} unpruned and {lowest:.4g} at least"
    )
    if lowest < target < unpruned:
        reason += f"; with so few tokens the nearest to it is {nearest:.4g}"
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
    best: Hit[Setting] | None = None,
    expensive: bool = False,
) -> Hit[Setting] | None:
    """Find the setting whose value is nearest to the target, by turning a dial from 0 to 1.

    Args:
        turn: Returns the setting at a position of the dial and its value, which falls as the dial
            rises, or None if there is no setting there, which counts as too far.
        target: The value to find.
        steps: How often the dial is halved at most.
        close_enough: Stop once the miss is at most this.
        best: The nearest so far, from other dials.
        expensive: Try the dial's other end second: if its value is above the target, the target is
            out of reach and nothing more is tried.
    """
    low, high = 0.0, 1.0
    for step in range(steps + 1):
        at_end = step == 1 and expensive
        middle = (low + high) / 2 if step else 0.0
        setting = turn(1 - 2**-steps if at_end else middle)
        if setting is not None:
            miss = abs(setting[1] - target) / max(abs(target), 1e-12)
            if best is None or miss < best.miss:
                best = Hit(*setting, miss)
        if best is not None and best.miss <= close_enough:
            return best
        if at_end:
            if setting is not None and setting[1] > target:
                return best
        elif setting is not None and setting[1] >= target:
            low = middle
        elif step:
            high = middle
        elif setting is not None:
            return best  # the highest value of this dial is too low already
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
