"""Scores are float32 or wider whatever the model's precision, under autocast as well."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Autocast would bring matrix products of float32 back to half precision."""
    device = x.device.type
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
