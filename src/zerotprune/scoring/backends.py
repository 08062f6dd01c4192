"""Scoring fused for GPUs: `graph` and `similarity` in Triton, and who scores by them.

Triton itself is imported only where it is used.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from .attention import Heads
from .ordering import exporting
from .scorer import REFERENCE, Scorer

Backend = Literal["auto", "reference", "triton"]

INSTALLED = find_spec("triton") is not None

# Not made when they are asked for: the compiler, which sees who scores, could not follow.
_fused: dict[Backend, Scorer] = {}


def prepare(backend: Backend) -> None:
    """Raise ValueError for a name that is none, or for kernels that cannot be had here."""
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend == "triton" and not INSTALLED:
        raise ValueError("backend='triton' needs the package triton, which is not installed")
    wanted = backend == "triton" or (backend == "auto" and torch.cuda.is_available())
    if wanted and INSTALLED and not _fused:
        fused = import_module(".triton.fused", __package__).FusedScorer
        _fused.update({"auto": fused(), "triton": fused(strict=True)})


def scorer(backend: Backend, heads: list[Heads]) -> Scorer:
    """Who scores these heads. `auto` takes the kernels wherever they give the same result."""
    if backend == "reference":
        return REFERENCE
    why_not = _why_not(heads[0].q, backend)
    if why_not is None:
        if not _fused:
            prepare(backend)  # the model was unpickled, and nobody has called prune_
        return _fused[backend]
    if backend == "triton":
        raise ValueError(f"backend='triton' cannot score here: {why_not}")
    return REFERENCE


def used_on(device: torch.device) -> str:
    """The backend that `auto` comes to on a device, for people to read."""
    if device.type == "cuda" and INSTALLED:
        return "triton"
    return "reference"


def _why_not(x: Tensor, backend: Backend) -> str | None:
    """What keeps the kernels from such tensors, if anything does."""
    device = x.device.type
    if not INSTALLED:
        return "the package triton is not installed"
    if device != "cuda" and not (device == "cpu" and backend == "triton" and _interpreted()):
        return f"the model is on the device {device}, not on a GPU"
    if exporting():
        return "an exported model has to run without this library"
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"{x.dtype} is not a precision of theirs"
    if x.dtype == torch.bfloat16 and device == "cpu":
        return "Triton's interpreter multiplies no bfloat16"
    return None


def _interpreted() -> bool:
    """Kernels run on a CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
