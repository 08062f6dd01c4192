"""All that a calibration is made of, measured in one go over the images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..backbones import backbone
from ..budgets import schedule_for
from ..data.images import Batch
from ..plan import Plan
from ..schedule import Schedule
from .calibration import Calibration, Identity
from .rounds import BlockRounds, rounds_needed, variances, variances_json
from .survey import BlockSurvey, survey
from .vhf import DEFAULT, Verdict, judges, random_starts, search


@dataclass(frozen=True)
class RangeSearch:
    """How the VHF range is searched."""

    schedule: Schedule
    labels: bool
    evaluations: int
    seed: int

    def check(self, model: nn.Module) -> None:
        """Refuse a schedule that the model cannot follow, or one to which no range matters."""
        Plan(self.schedule, backbone(model).geometry).check()
        if all(stage.keep == 1 for stage in self.schedule.stages):
            raise ValueError(
                "no stage of the schedule has keep below 1, so no VHF range matters to it"
            )


def usual_schedule(model: nn.Module) -> Schedule:
    """The paper's for this search, which is for 12 blocks; else one of the paper's form."""
    if backbone(model).geometry.depth == 12:
        return Schedule.preset("vhf-search")
    return schedule_for(model, cost=0.7, method="zero-tprune")


@dataclass(frozen=True)
class Findings:
    """What was measured."""

    blocks: list[BlockSurvey]
    rows: list[BlockRounds]
    threshold: float
    verdict: Verdict | None  # None: the range was not searched

    @property
    def images(self) -> int:
        return len(self.blocks[0].spread)

    def calibration(self, identity: Identity, provenance: dict[str, Any]) -> Calibration:
        verdict = self.verdict
        return Calibration(
            model=identity,
            rounds=tuple(row.needed for row in self.rows),
            vhf=DEFAULT if verdict is None else verdict.recommended,
            kl={
                "means": "KL(importance after 50 rounds ‖ after r rounds), nats: mean, its error",
                "threshold": self.threshold,
                "blocks": [row.to_json() for row in self.rows],
            },
            variances=variances_json(variances(self.blocks, self.rows)),
            search={} if verdict is None else verdict.to_json(),
            provenance=provenance,
        )


def measure(
    model: nn.Module,
    batches: Iterable[Batch],
    plan: RangeSearch | None,
    threshold: float,
    device: str = "cpu",
    advance: Callable[[str, int], None] = lambda what, count: None,
) -> Findings:
    """The rounds that every block needs and, by a plan, the VHF range. The model is on `device`."""
    halves = None
    if plan is not None:
        # The search goes over the images again and again: they are decoded once and held.
        batches = held = list(batches)
        halves = judges(model, plan.schedule, held, plan.labels, device)
    blocks = survey(model, batches, device, lambda count: advance("images", count))
    rows = rounds_needed(blocks, threshold)
    verdict = None
    if plan is not None and halves is not None:
        starts = random_starts(variances(blocks, rows), plan.seed)
        verdict = search(halves, starts, plan.evaluations, lambda trial: advance("ranges", 1))
    return Findings(blocks, rows, threshold, verdict)
