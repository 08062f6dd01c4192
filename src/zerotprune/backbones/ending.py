"""How a library's model is entered and how it ends while it is pruned.

An `Ending` replaces a model's forward. In every call it looks at the head, which may have changed
since, and tells the last block what to do:

- If the head reads the prefix tokens alone, compute the last block for those only (`prefix_only`).
- If the head pools tokens that were merged or padded, the last block returns its tokens (`left`),
  and the head pools them by size.
- Otherwise the library's forward runs.

Each library has one subclass.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..block import refuse_old_compiler
from ..shapes import Float
from ..tokens import Tokens


class Ending(ABC):
    """Replace a model's forward.

    The list of tokens that leave the last block lives for one call: threads, copies and nested
    calls share nothing, and a compiler sees one graph.

    Args:
        model: The model whose forward it replaces.
        prefix_only: Compute the last block for the prefix tokens alone, if the head reads no others
            and no hook does.
        proportional: The method's `proportional`, if it merges or pads tokens: then a head that
            pools weighs them by size, and so does attention pooling.
    """

    #: the library's modules whose hooks on blocks do not matter: they record outputs
    recorders: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, model: Any, *, prefix_only: bool = False, proportional: float | None = None
    ) -> None:
        self.model, self.prefix_only, self.proportional = model, prefix_only, proportional
        self._unhooked_at = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unhooked_at": -1}  # hooks are counted per process

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last = self.last_kwargs()
        return self.run(last, *args, **kwargs) if last else self.whole(*args, **kwargs)

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """Run the library's forward."""
        return type(self.model).forward(self.model, *args, **kwargs)

    @abstractmethod
    def run(self, last: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model with these keywords for the last block, and pool by the sizes of
        `last["left"]`, if it is there."""

    def enter(self, x: Float[Tensor, "batch tokens width"], block: int) -> Tensor:
        """Run the model from a block on, counted from 1, with `x` as its input."""
        raise NotImplementedError(f"{type(self.model).__name__} cannot be entered at a block")

    @abstractmethod
    def last_block(self) -> nn.Module: ...

    @abstractmethod
    def around(self) -> Iterable[nn.Module]:
        """Return the modules that see the output of the last block: its parents and the norm."""

    def bypassed(self) -> Iterable[nn.Module]:
        """Return the modules that are not called when the head pools by size."""
        return ()

    @abstractmethod
    def reads_prefix_only(self) -> bool:
        """Return whether the head, as it is now, reads the prefix tokens alone."""

    @abstractmethod
    def weighs_sizes(self) -> bool:
        """Return whether the head, as it is now, can pool by size. It must be one that is known."""

    def last_kwargs(self, prefix_only: bool = True) -> dict[str, Any]:
        """Return the keywords for the last block in this call; {} if it runs as usual."""
        if "forward" not in self.last_block().__dict__:
            return {}  # the block was replaced after pruning
        reads_prefix_only = self.reads_prefix_only()
        if self.prefix_only and reads_prefix_only:
            return {"prefix_only": True} if prefix_only and not self._is_watched() else {}
        if self.proportional is None:
            return {}
        if not reads_prefix_only and not self.weighs_sizes():
            raise ValueError(
                "the model's head was replaced after pruning by one that cannot pool merged "
                "tokens: call prune_ again"
            )
        self.refuse_additions(self.model, self.bypassed())
        left: list[Tokens] = []
        return {"left": left}

    def _is_watched(self) -> bool:
        """Return whether there is a hook in or around the last block. It must see all tokens.

        torch counts the hooks that a process registers. If there was none before and none was
        registered since, the modules are not searched again. A new module that already has hooks is
        noticed at the next registration.
        """
        if torch.compiler.is_compiling():
            return self._finds_hooks()
        count = RemovableHandle.next_id
        if self._unhooked_at == count:
            return False
        if self._finds_hooks():
            return True
        self._unhooked_at = count
        return False

    def _finds_hooks(self) -> bool:
        modules = (*self.around(), *self.last_block().modules())
        return any(self.is_users_hook(hook) for module in modules for hook in hooks_on(module))

    @classmethod
    def refuse_additions(cls, model: nn.Module, modules: Iterable[nn.Module]) -> None:
        """Refuse hooks of a user, and another forward, on modules that are not called.

        A tracer's hooks are no user's: fvcore hooks all modules, to name what it counts. Nor are
        accelerate's that move inputs to the module's device, where they are.
        """
        for module in modules:
            if "forward" in module.__dict__ and not _is_dispatched(module):
                raise _uncalled("another forward of", model, module)
            # Asked in every forward, so without a call as long as there are no hooks.
            hooked = module._forward_hooks or module._forward_pre_hooks
            hooked = hooked or module._backward_hooks or module._backward_pre_hooks
            if not hooked or not any(map(cls.is_users_hook, hooks_on(module))):
                continue
            if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
                raise _uncalled("hooks on", model, module)

    @classmethod
    def is_users_hook(cls, hook: Callable[..., Any]) -> bool:
        """Return whether it is a user's hook, and not one of the library."""
        return getattr(hook, "__module__", "") not in cls.recorders


def hooks_on(module: nn.Module) -> list[Callable[..., Any]]:
    """Return all hooks on the module itself."""
    forward = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return [*forward, *module._backward_hooks.values(), *module._backward_pre_hooks.values()]


def _is_dispatched(module: nn.Module) -> bool:
    """Return whether accelerate has replaced the forward, and the module has its own weights."""
    own = module.parameters(recurse=False)
    return hasattr(module, "_hf_hook") and not any(weight.is_meta for weight in own)


def _uncalled(what: str, model: nn.Module, module: nn.Module) -> ValueError:
    """Return the error for what was put on a module that is not called."""
    names = (name for name, other in model.named_modules() if other is module)
    return ValueError(
        f"{what} {next(names, type(module).__name__)} would not be called while the model is "
        "pruned: use its submodules or its block; to count operations, use zerotprune.gmacs"
    )


class BlockRow:
    """Blocks to call or to iterate over, as libraries do; the last one gets keywords."""

    def __init__(self, blocks: Iterable[Any], last: dict[str, Any]) -> None:
        self._blocks, self._last = blocks, last

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        *others, last = self._blocks
        yield from others
        yield functools.partial(last, **self._last) if self._last else last

    def __call__(self, x: Any) -> Any:
        *others, last = self._blocks
        for block in others:
            x = block(x)
        return last(x, **self._last)


class Proxy:
    """A module with some attributes replaced, as its methods see it. The module itself does not
    change."""

    def __init__(self, module: Any, **attributes: Any) -> None:
        self._module = module
        for name, value in attributes.items():  # torch 2.11 cannot compile an update
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self._module), name, None)
        if isinstance(method, FunctionType) and name not in self._module.__dict__:
            return functools.partial(method, self)  # it must see the replaced attributes too
        return getattr(self._module, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._module).forward(self, *args, **kwargs)


def identity(x: Tensor) -> Tensor:
    """Stand in for a step that is already done."""
    return x


def weighted_mean(
    x: Float[Tensor, "batch tokens width"], weight: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch width"]:
    """Return the mean over patches: tokens count by their size.

    >>> x = torch.tensor([[[1.0], [4.0], [9.0]]])
    >>> weighted_mean(x, torch.tensor([[2.0, 1.0, 0.0]]))
    tensor([[2.]])
    """
    share = weight / weight.sum(dim=1, keepdim=True)
    return (x * share.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def weighted_maximum(
    x: Float[Tensor, "batch tokens width"], weight: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch width"]:
    """Return the maximum over tokens, without padding.

    >>> x = torch.tensor([[[1.0], [4.0], [9.0]]])
    >>> weighted_maximum(x, torch.tensor([[2.0, 1.0, 0.0]]))
    tensor([[4.]])
    """
    return x.masked_fill((weight == 0).unsqueeze(-1), -torch.inf).amax(dim=1)


def as_forward(ending: Ending) -> functools.partial[Any]:
    """Make the ending a model's forward.

    It is a partial, because `torch.export` refuses an object, with the signature of the model's
    forward, by which exported programs name their inputs.
    """
    forward = functools.partial(_forward, ending)
    signature = inspect.signature(MethodType(type(ending.model).forward, ending.model))
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def ending_of(model: Any) -> Ending | None:
    """Return the ending that `as_forward` put on the model; None if there is none."""
    forward = model.__dict__.get("forward")
    if isinstance(forward, functools.partial) and forward.func is _forward:
        ending: Ending = forward.args[0]
        return ending
    return None


def is_foreign(model: nn.Module) -> bool:
    """Return whether something else has replaced the model's forward."""
    return "forward" in model.__dict__ and ending_of(model) is None


def _forward(ending: Ending, *args: Any, **kwargs: Any) -> Any:
    refuse_old_compiler()
    return ending(*args, **kwargs)


def make_refusal(name: str, why: str) -> functools.partial[NoReturn]:
    """Make a method that raises ValueError, in place of one that needs an unpruned model."""
    return functools.partial(_refuse, name, why)


def is_refusal(method: object) -> bool:
    return isinstance(method, functools.partial) and method.func is _refuse


def _refuse(name: str, why: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError(f"{name} {why}")
