"""Search the VHF range by random starts and a beam, as in the paper, and test it on other images.

Every evaluation runs the pruned model, so there are few of them, and the range that looks best is
best partly by luck. So it is compared with the default on the other half of the images.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import schedule_for
from ..measure.accuracy import Mean, divergence
from ..methods import ZeroTPrune, to_data
from ..plan import Plan
from ..schedule import Schedule
from ..shapes import Batch, Float
from ..surgery import attach, restore_

VhfRange = tuple[float, float]
Truths = tuple[Tensor, Tensor]  # images, and their labels or the unpruned log-probabilities
DEFAULT_VHF: VhfRange = (0.01, 0.7)
WIDTH, STARTS = 2, 4
STEP, FINEST = 2.0, 1.1
ENOUGH = 30  # images: with fewer, a paired standard error means little


@dataclass(frozen=True)
class RangeSearch:
    """How the VHF range is searched."""

    schedule: Schedule
    labels: bool
    evaluations: int
    seed: int

    def check(self, model: nn.Module) -> None:
        """Refuse a schedule that the model cannot follow, or that does not use VHF."""
        method = self.schedule.method
        if not isinstance(method, ZeroTPrune) or method.vhf is None or method.ranking != "wpr":
            raise ValueError(
                "the range is searched with a schedule of Zero-TPrune that votes and has VHF, got "
                f"one of {json.dumps(to_data(method))}: give another --schedule"
            )
        Plan(self.schedule, backbone(model).geometry).check()
        if all(stage.keep == 1 for stage in self.schedule.stages):
            raise ValueError("no stage of the schedule has keep below 1, so VHF is not used")


def usual_schedule(model: nn.Module) -> Schedule:
    """Return the paper's schedule for this search, or a similar one if depth is not 12."""
    if backbone(model).geometry.depth == 12:
        return Schedule.preset("vhf-search")
    return schedule_for(model, cost=0.7, method="zero-tprune-paper").by("zero-tprune")


def random_starts(variances: Sequence[Tensor], seed: int) -> list[VhfRange]:
    """Draw ranges among the heads' variances, uniformly on a logarithmic scale: the lower bound
    below their median, the upper one above it."""
    logs = torch.cat([block.flatten() for block in variances]).clamp_min(1e-6).log().sort().values
    low, middle, high = (logs[int(part * (len(logs) - 1))].item() for part in (0.05, 0.5, 0.95))
    rng = random.Random(seed)
    return [
        _tidy(math.exp(rng.uniform(low, middle)), math.exp(rng.uniform(middle, high)))
        for _ in range(STARTS)
    ]


def beam_search(
    objective: Callable[[VhfRange], float], starts: Iterable[VhfRange], evaluations: int
) -> dict[VhfRange, float]:
    """Return the value of each range that was tried, in order: the starts, then the neighbors of
    the best two so far, over and over; once none is better, at half the step (in logarithms)."""
    trials: dict[VhfRange, float] = {}

    def evaluate(places: Iterable[VhfRange]) -> None:
        for place in places:
            if place not in trials and len(trials) < evaluations:
                trials[place] = objective(place)

    evaluate(starts)
    step, beam = STEP, list[VhfRange]()
    while len(trials) < evaluations:
        before = beam
        # Sorting is stable: of equals the one tried first.
        beam = sorted(trials, key=lambda place: -trials[place])[:WIDTH]
        step = math.sqrt(step) if beam == before else step
        if step < FINEST:
            break
        for place in beam:
            evaluate(_neighbors(place, step))
    return trials


def _neighbors(place: VhfRange, step: float) -> list[VhfRange]:
    low, high = place
    moves = [(low * step, high), (low / step, high), (low, high * step), (low, high / step)]
    return [_tidy(*move) for move in moves if move[0] <= move[1]]


def _tidy(low: float, high: float) -> VhfRange:
    """Round to four digits, so that a range that was tried is recognized."""
    return float(f"{low:.4g}"), float(f"{high:.4g}")


@dataclass(frozen=True)
class Verdict:
    """The best range of a search, and its result on the other half of the images."""

    schedule: Schedule
    labels: bool
    trials: dict[VhfRange, float]
    searched: int  # images
    default_value: Mean  # on the other half
    best_value: Mean
    gain: Mean  # best − default, image by image
    judged: int  # images

    @property
    def measure(self) -> str:
        return "top-1, %" if self.labels else "−KL(unpruned ‖ pruned), nats"

    @property
    def best(self) -> VhfRange:
        return _best(self.trials)

    @property
    def holds(self) -> bool:
        """Whether the gain is more than two standard errors."""
        return self.judged >= ENOUGH and self.gain.value > 2 * self.gain.error

    @property
    def recommended(self) -> VhfRange:
        return self.best if self.holds else DEFAULT_VHF

    def to_json(self) -> dict[str, Any]:
        return {
            "objective": "top-1" if self.labels else "-KL(unpruned ‖ pruned)",
            "schedule": [vars(stage) for stage in self.schedule.stages],
            "method": to_data(self.schedule.method),
            "trials": [[*place, value] for place, value in self.trials.items()],
            "searched_on": self.searched,
            "best": list(self.best),
            "judged_on": self.judged,
            "best_value": self.best_value.to_json(),
            "default_value": self.default_value.to_json(),
            "gain": self.gain.to_json(),
            "better_than_default": self.holds,
        }


def search_range(
    model: nn.Module,
    plan: RangeSearch,
    batches: Iterable[Batch],
    variances: Sequence[Tensor],
    device: str,
    advance: Callable[[int], None],
) -> Verdict:
    """Search on the even images, beginning with the default, and compare the best range with it on
    the odd ones: if the data is sorted by class, both halves get as much of each."""
    halves: tuple[list[Truths], list[Truths]] = ([], [])
    for images, truth, index in batches:
        if not plan.labels:
            with torch.inference_mode():
                truth = model(images.to(device)).double().log_softmax(dim=-1).cpu()
        for odd, half in enumerate(halves):
            chosen = index % 2 == odd
            if chosen.any():
                half.append((images[chosen], truth[chosen]))
    if not all(halves):
        raise ValueError("the search for a VHF range needs at least two images, one in each half")
    judge = partial(_judge, model, plan, device)

    def objective(place: VhfRange) -> float:
        value = judge(halves[0], place).mean().item()
        advance(1)
        return value

    starts = [DEFAULT_VHF, *random_starts(variances, plan.seed)]
    trials = beam_search(objective, starts, plan.evaluations)
    default = judge(halves[1], DEFAULT_VHF)
    best = default if _best(trials) == DEFAULT_VHF else judge(halves[1], _best(trials))
    return Verdict(
        schedule=plan.schedule,
        labels=plan.labels,
        trials=trials,
        searched=sum(len(truth) for _, truth in halves[0]),
        default_value=Mean.of(default),
        best_value=Mean.of(best),
        gain=Mean.of(best - default),
        judged=len(default),
    )


def _judge(
    model: nn.Module, plan: RangeSearch, device: str, half: Sequence[Truths], place: VhfRange
) -> Float[Tensor, " images"]:
    """Score each image, more is better: 1 if the top class is right, else 0; without labels,
    −KL(unpruned ‖ pruned) of the class probabilities."""
    method = plan.schedule.method
    assert isinstance(method, ZeroTPrune)
    attach(model, plan.schedule.by(replace(method, vhf=place)))
    outcomes = []
    try:
        with torch.inference_mode():
            for images, truth in half:
                outputs = model(images.to(device)).double().cpu()
                if plan.labels:
                    outcomes.append((outputs.argmax(dim=-1) == truth).double())
                else:
                    outcomes.append(-divergence(truth, outputs.log_softmax(dim=-1)))
    finally:
        restore_(model)
    return torch.cat(outcomes)


def _best(trials: Mapping[VhfRange, float]) -> VhfRange:
    return max(trials, key=lambda place: trials[place])
