"""A method under which nothing goes: every block is ours from its stage on, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import zerotprune as ztp
from zerotprune.method import Seen
from zerotprune.tokens import Reduction


@dataclass(frozen=True)
class KeepAll(ztp.Method):
    def kept(self, stage: ztp.Stage, patches: int) -> int:
        return patches

    def reduce(self, seen: Seen, stage: ztp.Stage) -> Reduction:
        return Reduction(torch.arange(seen.patches).expand(len(seen.tokens.x), -1))


EVERYWHERE = ztp.Schedule(tuple(ztp.Stage(block, 0.5) for block in (1, 2, 4)), KeepAll())
