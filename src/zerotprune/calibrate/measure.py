"""All that a calibration is made of, measured in one go over the images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..data.images import Batch
from .calibration import Calibration, Identity
from .survey import BlockRounds, BlockSurvey, rounds_needed, survey, variances, variances_json
from .vhf import DEFAULT, RangeSearch, Verdict, search


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
    device: str,
    advance: Callable[[str, int], None],
) -> Findings:
    """The rounds that every block needs and, by a plan, the VHF range. The model is on `device`."""
    # The search goes over the images again and again: they are decoded once and held.
    seen = batches if plan is None else list(batches)
    blocks = survey(model, seen, device, lambda count: advance("images", count))
    rows = rounds_needed(blocks, threshold)
    verdict = None
    if plan is not None:
        heads = variances(blocks, rows)
        verdict = search(model, plan, seen, heads, device, lambda: advance("ranges", 1))
    return Findings(blocks, rows, threshold, verdict)
