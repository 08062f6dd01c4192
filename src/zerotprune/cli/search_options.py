"""What `zerotprune search` is told of the model, the pictures and the budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from ..search.study import Measure
from .session import Precision
from .subject import Subject


@Parameter(name="*")
@dataclass(frozen=True)
class SearchSubject(Subject):
    """Which model on which pictures, and what is searched for."""

    labels: bool = True
    "Search by top-1 on the labels; without them, by KL(unpruned ‖ pruned) of the outputs."
    precision: Precision = "float32"
    "Of the model; scores are float32 in any case."
    method: str = "zero-tprune"
    "Or zero-tprune-uni, cls-attention, average-attention, accumulated-attention, random."
    calibration: Path | None = None
    "The VHF range to search with: what `calibrate` wrote."

    @property
    def measure(self) -> Measure:
        return "top1" if self.labels else "kl"


@Parameter(name="*")
@dataclass(frozen=True)
class Budget:
    """What may be spent; nothing is said of it with --sampler nsga2."""

    gmacs: float | None = None
    "Multiply-accumulates for one picture, in units of 10⁹."
    keep: float | None = None
    "Share of the unpruned model's cost."
    speedup: float | None = None
    "Times the unpruned model's speed, measured on this machine at --batch."
    latency_ms: float | None = None
    "Milliseconds for one batch, measured on this machine."

    @property
    def given(self) -> dict[str, float]:
        held = {"--gmacs": self.gmacs, "--keep": self.keep, "--speedup": self.speedup,
                "--latency-ms": self.latency_ms}  # fmt: skip
        return {name: value for name, value in held.items() if value is not None}

    @property
    def measured(self) -> bool:
        return self.speedup is not None or self.latency_ms is not None

    def __str__(self) -> str:
        return " ".join(f"{name} {value:g}" for name, value in self.given.items())
