"""Scores are float32 or wider whatever the model's precision, under autocast as well."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:  # the usual case, asked for in every step of every stage
        return x
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Asked once: the compiler could not follow the question.
_WITH_AUTOCAST = [
    device for device in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(device)
]


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Autocast would bring matrix products of float32 back to half precision."""
    device = x.device.type
    if device in _WITH_AUTOCAST and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
