"""What a vision-language model reads of the tokens in its tower."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Reading(NamedTuple):
    """Every token that is read becomes one of the language model's."""

    tower: nn.Module
    #: by their place among the hidden states: 0 is what enters the first block, −1 leaves the last
    states: tuple[int, ...]
    left_out: int = 0  # so many tokens from the front of each
