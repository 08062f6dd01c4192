"""The schedule for a budget: a method's own dials, turned until the cost is met."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..backbones import backbone
from ..cost import Convention, Geometry
from ..grid import Outputs
from ..knobs import Dial
from ..method import Method
from ..methods import DEFAULT, DENSE, name_of, resolve
from ..plan import Plan
from ..schedule import Schedule
from .adaptive import measured_gmacs
from .bisection import Hit, bisect
from .budget import TOLERANCE, Budget
from .tuned import tuned_schedule

Price = Callable[[Schedule], float | None]


def schedule_for(
    model: nn.Module,
    *,
    cost: float | None = None,
    gmacs: float | None = None,
    method: Method | str | None = None,
    images: Tensor | None = None,
    convention: Convention = "full",
    tuned: bool = False,
    outputs: Outputs = "tokens",
) -> Schedule:
    """The schedule of a method for a budget, met within 1 %.

    The budget is `cost`, the share of the unpruned model's compute, or `gmacs`. Every method comes
    with its own form of schedule; with `tuned`, it is the one that was searched for this very model
    and budget (`zerotprune info` says which there are). `images` are needed for methods whose cost
    depends on them. `outputs` are those of `prune_`: to give the grid back may cost something, and
    without a method named, Fold then goes by received attention alone.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> schedule_for(model, cost=0.7, method="tome").stages[0]
    Stage(block=1, keep=1.0, similar=9, rounds=None)
    """
    budget = Budget(cost, gmacs)
    if method is None:
        method = DENSE if outputs == "grid" else DEFAULT
    method = resolve(method)
    geometry = backbone(model).geometry
    unpruned = Plan(Schedule(), geometry).gmacs(convention)
    target = budget.gmacs_of(unpruned)
    if tuned:
        return tuned_schedule(model, method, target, unpruned)
    if abs(target - unpruned) <= TOLERANCE / 2 * unpruned:
        return Schedule((), method)
    price = _price(model, method, geometry, images, convention, outputs)
    return solve(method, geometry, target, unpruned, price, outputs)


def _price(
    model: nn.Module,
    method: Method,
    geometry: Geometry,
    images: Tensor | None,
    convention: Convention,
    outputs: Outputs = "tokens",
) -> Price:
    if method.adaptive and images is None:
        raise ValueError(
            f"the cost of {name_of(method)} depends on the images: give some to measure it, "
            "schedule_for(…, images=…)"
        )

    def price(schedule: Schedule) -> float | None:
        plan = Plan(schedule, geometry, outputs)
        try:
            plan.check()
        except ValueError:  # so much that some stage has no token left
            return None
        if images is None or not method.adaptive:
            return plan.gmacs(convention)
        return measured_gmacs(model, schedule, images, convention, outputs)

    return price


def solve(
    method: Method,
    geometry: Geometry,
    target: float,
    unpruned: float,
    price: Price,
    outputs: Outputs = "tokens",
) -> Schedule:
    """The first of the method's dials that comes within half of the tolerance; else the nearest."""
    best: Hit[Schedule] | None = None
    # What a measured cost would gain by more steps is less than its error.
    enough = TOLERANCE / 5 if method.adaptive else 0.0
    for dial in method.dials(geometry):
        best = bisect(_priced(dial, price), target, enough=enough, best=best, dear=method.adaptive)
        if best is not None and best.miss <= TOLERANCE / 2:
            return best.setting
    if best is not None and best.miss <= TOLERANCE:
        return best.setting
    ends = [best]
    if not method.adaptive:
        ends = [bisect(_priced(dial, price), 0.0) for dial in method.dials(geometry)]
    lowest = [end.value for end in ends if end is not None and end.setting.stages]
    if best is None or not lowest:
        raise ValueError(_why_none(method, geometry, outputs))
    raise ValueError(_unmet(method, target, unpruned, min(lowest), best.value))


def _priced(dial: Dial, price: Price) -> Callable[[float], tuple[Schedule, float] | None]:
    """What the dial gives, with its cost; None where there is nothing to be had."""

    def turn(at: float) -> tuple[Schedule, float] | None:
        schedule = dial(at)
        cost = None if schedule is None else price(schedule)
        return None if schedule is None or cost is None else (schedule, cost)

    return turn


def _why_none(method: Method, geometry: Geometry, outputs: Outputs) -> str:
    """What keeps the method from this model altogether."""
    for dial in method.dials(geometry):
        for at in (0.5, 0.0):
            schedule = dial(at)
            if schedule is not None:
                try:
                    Plan(schedule, geometry, outputs).check()
                except ValueError as error:
                    return str(error)
    return f"{name_of(method)} has no schedule for this model"


def _unmet(method: Method, target: float, unpruned: float, lowest: float, nearest: float) -> str:
    said = (
        f"a budget of {target:.4g} GMACs cannot be met by {name_of(method)}: this model takes "
        f"{unpruned:.4g} unpruned and {lowest:.4g} at least"
    )
    if lowest < target < unpruned:
        said += f"; with so few tokens the nearest to it is {nearest:.4g}"
    return said
