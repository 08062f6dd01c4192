"""Budget: what a pruned model may cost, as a share of the unpruned one's compute or in GMACs."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from ..ranges import check_range

#: by which part of a budget a schedule may miss it
TOLERANCE = 0.01


@dataclass(frozen=True)
class Budget:
    """One of the two.

    >>> Budget(cost=0.6).gmacs_of(unpruned=5.0)
    3.0
    """

    cost: float | None = None  # share of the unpruned model's compute
    gmacs: float | None = None

    def __post_init__(self) -> None:
        if (self.cost is None) == (self.gmacs is None):
            raise ValueError("a budget is either cost=…, a share of the compute, or gmacs=…")
        for name, value in self.given.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
            check_range(name, value)

    @property
    def given(self) -> dict[str, float]:
        both = {"cost": self.cost, "gmacs": self.gmacs}
        return {name: value for name, value in both.items() if value is not None}

    def gmacs_of(self, unpruned: float) -> float:
        """In GMACs, for a model that takes so many unpruned."""
        return float(self.gmacs) if self.cost is None else float(self.cost * unpruned)  # type: ignore[arg-type]
