"""What a search may spend, and whether a chosen schedule takes the time that was asked for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..block import Method
from ..budgets import latency
from ..budgets.contenders import Contender
from ..budgets.surface import Surface
from ..measure.speed import Clock, Entrant, Precision, Setup, measure
from ..pruning import restore_
from ..schedule import Schedule

TOLERANCE = 0.15  # of a time: what differs by more is not what was asked for
_ROUNDS = 20


@dataclass(frozen=True)
class SearchBudget:
    """What may be spent; nothing is said of it with --sampler nsga2."""

    gmacs: float | None = None
    "Multiply-accumulates for one image, in units of 10⁹."
    keep: float | None = None
    "Share of the unpruned model's cost."
    speedup: float | None = None
    "Times the unpruned model's speed, measured on this machine at --batch."
    latency_ms: float | None = None
    "Milliseconds for one batch, measured on this machine."

    @property
    def given(self) -> dict[str, float]:
        options = {"--gmacs": self.gmacs, "--keep": self.keep, "--speedup": self.speedup,
                   "--latency-ms": self.latency_ms}  # fmt: skip
        return {name: value for name, value in options.items() if value is not None}

    @property
    def timed(self) -> bool:
        return self.speedup is not None or self.latency_ms is not None

    def __str__(self) -> str:
        return " ".join(f"{name} {value:g}" for name, value in self.given.items())

    def check(self) -> None:
        """Refuse values that make no sense for any model."""
        for name, value in self.given.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.speedup is not None and self.speedup <= 1:
            raise ValueError(f"--speedup must be above 1, got {self.speedup}")
        if self.keep is not None and self.keep > 1:
            raise ValueError(f"--keep must be in (0, 1], got {self.keep}")

    def in_gmacs(self, surface: Surface) -> float | None:
        """As far as nothing has to be measured; one that cannot be met is refused."""
        gmacs = self.gmacs if self.keep is None else self.keep * surface.unpruned
        if gmacs is not None:
            surface.check(gmacs)
        return gmacs


def measure_budget(
    budget: SearchBudget,
    model: nn.Module,
    method: Method,
    images: Tensor,
    say: Callable[[str], None],
) -> float:
    """A budget in time as one in GMACs."""
    gmacs, timed = latency.budget_for(model, method, images, speedup=budget.speedup,
                                      latency_ms=budget.latency_ms)  # fmt: skip
    say(f"measured at batch {len(images)} on {images.device}: unpruned {timed.unpruned:.4g} ms; "
        f"a schedule of the paper's form of {gmacs:.3f} GMACs {timed.pruned:.4g} ms, "
        f"{timed.speedup:.2f} times as fast")  # fmt: skip
    return gmacs


def refuse_other_measurement(budget: SearchBudget, noted: float, now: float) -> None:
    """A time means other GMACs on another machine, or on one that is busy."""
    if abs(now / noted - 1) > TOLERANCE:
        raise ValueError(
            f"{budget} was {noted:.3f} GMACs when this study began and is {now:.3f} as measured "
            "now: the machine is another or was busy; wait until it is idle, or give another "
            "--study"
        )


@dataclass(frozen=True)
class Timing:
    """Milliseconds for one batch, one sample each a round, in turn."""

    unpruned: Sequence[float]
    pruned: Sequence[float]

    @property
    def speedups(self) -> list[float]:
        """Round by round: what slows both down does not count."""
        return [slow / quick for slow, quick in zip(self.unpruned, self.pruned, strict=True)]

    def __str__(self) -> str:
        unpruned, pruned, times = map(
            statistics.median, (self.unpruned, self.pruned, self.speedups)
        )
        return f"unpruned {unpruned:.4g} ms, chosen {pruned:.4g} ms, {times:.2f} times as fast"


def time_in_turn(
    model: nn.Module,
    schedule: Schedule,
    method: Method,
    *,
    precision: Precision,
    batch: int,
    device: str,
    clock: Clock | None = None,
) -> Timing:
    """The unpruned model and the pruned one in turn, so that a busy machine is as busy for both."""
    both = [Entrant(Contender("unpruned")), Entrant(Contender("chosen", schedule, method))]
    setup = Setup(device, modes=("eager",), rounds=_ROUNDS)
    speeds = measure(restore_(model), both, precision, batch, setup, clock).speeds
    for speed in speeds:
        if speed.failure:
            raise ValueError(f"the {speed.name} model cannot be timed: {speed.failure}")
    unpruned, pruned = ([1e3 * seconds for seconds in speed.seconds] for speed in speeds)
    return Timing(unpruned, pruned)


def refuse_missed_time(budget: SearchBudget, timing: Timing) -> None:
    """A schedule that is not as fast as was asked, or of which that cannot be told."""
    samples = timing.speedups if budget.speedup is not None else timing.pruned
    unit = "times as fast" if budget.speedup is not None else "ms"
    asked = budget.speedup or budget.latency_ms
    assert asked is not None
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    kept = "no schedule was written, the finished trials are kept"
    if high - low > 2 * TOLERANCE * middle:
        raise ValueError(
            f"{budget} was asked for, and the chosen schedule cannot be timed: half of the samples "
            f"lie between {low:.3g} and {high:.3g} {unit}, this machine is too busy; {kept}"
        )
    if abs(middle / asked - 1) > TOLERANCE:
        raise ValueError(
            f"{budget} was asked for, and the chosen schedule is measured at {middle:.3g} {unit}, "
            f"more than {100 * TOLERANCE:.0f} % off; {kept}"
        )
