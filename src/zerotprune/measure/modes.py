"""A model in one of the modes it can run in: eager, compiled, or captured as a CUDA graph."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..clock import Call

Mode = Literal["eager", "compile", "graph"]

MODES: tuple[Mode, ...] = get_args(Mode)


def ready(model: Any, images: Tensor, mode: Mode) -> tuple[Call, int]:
    """A call that has run before, and its peak memory in bytes."""

    def call() -> object:
        return model(images)

    for _ in range(2):
        call()
    if mode == "graph":
        return _capture(model, call, images)
    if images.device.type != "cuda":
        return call, 0
    return call, _peak(call, model, images)


def _capture(model: Any, call: Call, images: Tensor) -> tuple[Call, int]:
    """The call as a CUDA graph. A replay takes no memory: the peak is that of the capture."""
    side = torch.cuda.Stream(images.device)
    side.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream(images.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph, stream=side):
            call()

    peak = _peak(capture, model, images)
    graph.replay()
    return graph.replay, peak


def _peak(call: Call, model: nn.Module, images: Tensor) -> int:
    """The bytes that a process would need that runs this call and nothing else.

    That is what the call takes at its peak above what lay on the device before it, and the weights
    and images, which lay there. So the graphs and caches of the other cases do not count.
    """
    torch.cuda.synchronize(images.device)
    before = torch.cuda.memory_allocated(images.device)
    torch.cuda.reset_peak_memory_stats(images.device)
    call()
    torch.cuda.synchronize(images.device)
    taken = torch.cuda.max_memory_allocated(images.device) - before
    return taken + sum(held.nbytes for held in (*model.parameters(), *model.buffers(), images))


def room_for(count: int) -> AbstractContextManager[Any]:
    """Forget what was compiled before, and allow as many graphs of one forward as there are
    copies: to the compiler they are all the same code."""
    import torch._dynamo

    torch.compiler.reset()
    gc.collect()  # pruned copies lie in cycles: none may be freed later, while a graph is captured
    patched: AbstractContextManager[Any] = torch._dynamo.config.patch(recompile_limit=8 + count)
    return patched
