"""One bisection for everything that is set to a target by a dial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Setting = TypeVar("Setting")


class Hit(NamedTuple, Generic[Setting]):
    """A setting and how far from the target its value is, as a part of the target."""

    setting: Setting
    value: float
    miss: float


def bisect(
    turn: Callable[[float], tuple[Setting, float] | None],
    target: float,
    *,
    steps: int = 20,
    enough: float = 0.0,
    best: Hit[Setting] | None = None,
    dear: bool = False,
) -> Hit[Setting] | None:
    """The setting whose value is nearest to the target, by turning a dial from 0 to 1.

    `turn` gives the setting at a place of the dial and its value, which falls as the dial rises;
    None where there is none, which counts as too far. It ends early once the miss is `enough`.
    `best` is the nearest so far, from other dials. Where a turn is `dear`, the dial's other end
    comes second: a target below its value is out of reach, and nothing more is tried.
    """
    low, high = 0.0, 1.0
    for step in range(steps + 1):
        ends = step == 1 and dear
        at = (low + high) / 2 if step else 0.0
        setting = turn(1 - 2**-steps if ends else at)
        if setting is not None:
            miss = abs(setting[1] - target) / max(abs(target), 1e-12)
            if best is None or miss < best.miss:
                best = Hit(*setting, miss)
        if best is not None and best.miss <= enough:
            return best
        if ends:
            if setting is not None and setting[1] > target:
                return best
        elif setting is not None and setting[1] >= target:
            low = at
        elif step:
            high = at
        elif setting is not None:
            return best  # the highest value of this dial is too low already
    return best
