"""How many rounds each block needs, whether the paper's choice holds there, and its heads then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..measure.statistics import Mean
from ..schedule import papers_rounds
from ..shapes import Float
from .survey import ROUNDS, SETTLED, BlockSurvey

#: A block has voted enough when its mean divergence from the settled importance is below this share
#: of its spread, the divergence of the settled importance from a flat one. It is a share because
#: only the ranking counts, and in a flat block small differences decide it. Where scores differ
#: little from their mean, both divergences are half a variance, and their ratio is the share of the
#: scores' variance that is not there yet: 0.01 is a correlation of 0.995 with the settled scores.
THRESHOLD = 0.01
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class BlockRounds:
    """One block's row of the table."""

    block: int
    divergence: tuple[Mean, ...]  # after each of ROUNDS but the last
    spread: Mean
    needed: int
    paper: tuple[int, int]

    @property
    def verdict(self) -> str:
        """Does the paper's choice hold for this block?"""
        if self.needed < self.paper[0]:
            return "too many"
        return "holds" if self.needed <= self.paper[1] else "too few"

    def to_json(self) -> dict[str, Any]:
        after = zip(ROUNDS, self.divergence, strict=False)
        return {
            "block": self.block,
            "kl": {str(rounds): kl.to_json() for rounds, kl in after},
            "spread": self.spread.to_json(),
            "needed": self.needed,
            "paper": list(self.paper),
            "verdict": self.verdict,
        }


def rounds_needed(blocks: Sequence[BlockSurvey], threshold: float) -> list[BlockRounds]:
    """For each block the fewest of ROUNDS whose mean divergence is within the threshold."""
    rows = []
    for number, block in enumerate(blocks, start=1):
        means = tuple(Mean.of(column) for column in block.divergence.T[:-1])
        spread = Mean.of(block.spread)
        limit = threshold * spread.value
        enough = (each for each, kl in zip(ROUNDS, means, strict=False) if kl.value <= limit)
        paper = papers_rounds(number, len(blocks))
        rows.append(BlockRounds(number, means, spread, next(enough, SETTLED), paper))
    return rows


def variances(
    blocks: Sequence[BlockSurvey], rows: Sequence[BlockRounds]
) -> list[Float[Tensor, "images heads"]]:
    """Of the heads' scores in each block, after the rounds that it needs: what VHF looks at."""
    return [
        block.variance[:, ROUNDS.index(row.needed)] for block, row in zip(blocks, rows, strict=True)
    ]


def variances_json(found: Sequence[Float[Tensor, "images heads"]]) -> dict[str, Any]:
    """For each block and head some quantiles over the images."""
    points = torch.tensor(QUANTILES, dtype=torch.float64)
    exact = [each.double().quantile(points, dim=0).T.tolist() for each in found]
    blocks = [[[float(f"{value:.4g}") for value in head] for head in block] for block in exact]
    return {"quantiles": list(QUANTILES), "blocks": blocks}
