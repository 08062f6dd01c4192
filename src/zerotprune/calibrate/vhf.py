"""The VHF range by random starts and beam search, as in the paper, and its test on other images.

Every evaluation runs the pruned model, so there are few of them, and the range that looks best on
the images it was found on is partly luck: the other half of the images judges it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.images import Batch
from ..measure.statistics import Mean, divergence
from ..methods import ZeroTPrune
from ..schedule import Schedule
from ..shapes import Float
from ..surgery import attach, restore_

Range = tuple[float, float]
DEFAULT: Range = (0.01, 0.7)
WIDTH, STARTS = 2, 4
STEP, FINEST = 2.0, 1.1
ENOUGH = 30  # images: of fewer a paired standard error says little


class Trial(NamedTuple):
    """One evaluation of a range."""

    place: Range
    value: float


def random_starts(variances: Sequence[Tensor], seed: int, count: int = STARTS) -> list[Range]:
    """Ranges among the variances that the heads have: the lower bound below their median, the
    upper one above it, even on a logarithmic scale."""
    held = torch.cat([each.flatten() for each in variances]).clamp_min(1e-6).log().sort().values
    low, middle, high = (held[int(part * (len(held) - 1))].item() for part in (0.05, 0.5, 0.95))
    dice = random.Random(seed)
    return [
        _tidy(math.exp(dice.uniform(low, middle)), math.exp(dice.uniform(middle, high)))
        for _ in range(count)
    ]


def beam_search(
    objective: Callable[[Range], float], starts: Iterable[Range], evaluations: int
) -> list[Trial]:
    """All trials in their order: the starts, then the neighbours of the best two so far, over and
    over; once none of these is better, at half the step (on a logarithmic scale)."""
    trials: dict[Range, float] = {}

    def value(place: Range) -> None:
        if place not in trials and len(trials) < evaluations:
            trials[place] = objective(place)

    for start in starts:
        value(start)
    step, beam = STEP, list[Range]()
    while len(trials) < evaluations:
        before, beam = beam, _best(trials)
        step = math.sqrt(step) if beam == before else step
        if step < FINEST:
            break
        for place in beam:
            for neighbour in _neighbours(place, step):
                value(neighbour)
    return [Trial(place, found) for place, found in trials.items()]


def _best(trials: dict[Range, float]) -> list[Range]:
    """Sorting is stable: of equals the one tried first."""
    return sorted(trials, key=lambda place: -trials[place])[:WIDTH]


def _neighbours(place: Range, step: float) -> list[Range]:
    low, high = place
    moves = [(low * step, high), (low / step, high), (low, high * step), (low, high / step)]
    return [_tidy(*move) for move in moves if move[0] <= move[1]]


def _tidy(low: float, high: float) -> Range:
    """Four figures, so that rounding makes no new place of one that was tried."""
    return float(f"{low:.4g}"), float(f"{high:.4g}")


@dataclass(frozen=True)
class Judge:
    """A pruned model on some images that lie in memory."""

    model: nn.Module
    schedule: Schedule
    batches: list[tuple[Tensor, Tensor]]  # images, and labels or the unpruned log-probabilities
    labels: bool
    device: str

    def outcomes(self, place: Range) -> Float[Tensor, " images"]:
        """For each image 1 for the right class on top and 0 for another; without labels,
        −KL(unpruned ‖ pruned) of the class probabilities. More is better."""
        attach(self.model, self.schedule.by(ZeroTPrune(vhf=place)))
        found = []
        try:
            with torch.inference_mode():
                for images, truth in self.batches:
                    out = self.model(images.to(self.device)).double().cpu()
                    if self.labels:
                        found.append((out.argmax(dim=-1) == truth).double())
                    else:
                        found.append(-divergence(truth, out.log_softmax(dim=-1)))
        finally:
            restore_(self.model)
        return torch.cat(found)

    def value(self, place: Range) -> float:
        return self.outcomes(place).mean().item()


def judges(
    model: nn.Module, schedule: Schedule, batches: Sequence[Batch], labels: bool, device: str
) -> tuple[Judge, Judge]:
    """One for the even images, to search on, one for the odd ones: where the data is in the order
    of its classes, both halves get as much of each."""
    halves: tuple[list[tuple[Tensor, Tensor]], ...] = ([], [])
    for images, classes, index in batches:
        truth = classes
        if not labels:
            with torch.inference_mode():
                truth = model(images.to(device)).double().log_softmax(dim=-1).cpu()
        for half, chosen in zip(halves, (index % 2 == 0, index % 2 == 1), strict=True):
            if chosen.any():
                half.append((images[chosen], truth[chosen]))
    if not all(halves):
        raise ValueError("the search for a VHF range needs two images at least, one in each half")
    first, second = (Judge(model, schedule, half, labels, device) for half in halves)
    return first, second


@dataclass(frozen=True)
class Verdict:
    """What the search found, and what the other half of the images says to it."""

    schedule: Schedule
    labels: bool
    trials: list[Trial]
    searched: int  # images
    default: Mean  # on the other half
    found: Mean
    gain: Mean  # found − default, image by image
    judged: int  # images

    @property
    def best(self) -> Range:
        return max(self.trials, key=lambda trial: trial.value).place

    @property
    def holds(self) -> bool:
        """Is the gain larger than chance makes it in one case of forty?"""
        return self.judged >= ENOUGH and self.gain.value > 2 * self.gain.error

    @property
    def recommended(self) -> Range:
        return self.best if self.holds else DEFAULT

    def to_json(self) -> dict[str, Any]:
        return {
            "objective": "top-1" if self.labels else "-KL(unpruned ‖ pruned)",
            "schedule": [vars(stage) for stage in self.schedule.stages],
            "trials": [[*trial.place, trial.value] for trial in self.trials],
            "searched_on": self.searched,
            "best": list(self.best),
            "judged_on": self.judged,
            "best_value": self.found.to_json(),
            "default_value": self.default.to_json(),
            "gain": self.gain.to_json(),
            "better_than_default": self.holds,
        }


def search(
    halves: tuple[Judge, Judge],
    starts: Sequence[Range],
    evaluations: int,
    advance: Callable[[Trial], None] = lambda trial: None,
) -> Verdict:
    """Search on the one half, beginning with the default, and compare the two on the other."""
    first, second = halves

    def objective(place: Range) -> float:
        value = first.value(place)
        advance(Trial(place, value))
        return value

    trials = beam_search(objective, [DEFAULT, *starts], evaluations)
    best = max(trials, key=lambda trial: trial.value).place
    default = second.outcomes(DEFAULT)
    found = default if best == DEFAULT else second.outcomes(best)
    return Verdict(
        schedule=first.schedule,
        labels=first.labels,
        trials=trials,
        searched=sum(len(truth) for _, truth in first.batches),
        default=Mean.of(default),
        found=Mean.of(found),
        gain=Mean.of(found - default),
        judged=len(default),
    )
