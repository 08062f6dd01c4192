"""What the tests of `show` share: a schedule, and a stage that was made by hand."""

from __future__ import annotations

import torch

from zerotprune import Schedule, Stage
from zerotprune.show.story import StageView

SCHEDULE = Schedule((Stage(2, 1.0, 9), Stage(5, 0.6, 7), Stage(9, 0.5)))


def hand_made() -> StageView:
    """Make three columns and two rows with every fate, and one pair."""
    fate = torch.tensor([[0, 1, 2], [3, 0, 0]])
    partner = torch.tensor([[-1, 5, -1], [-1, -1, -1]])
    return StageView(4, fate, partner, torch.ones(2, 3))
