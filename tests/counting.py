"""Count the multiply-accumulates of a call by torch's table of operators.

It counts as torch's `FlopCounterMode` does, without statistics per module, which take most of the
time. Fused attention on a CPU is not in the table, so attention is two matrix products here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        return out


def macs_of(call: Callable[[], object]) -> int:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole layer
    counter = _Counter()
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            call()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.flops // 2
