"""Attach a plan to a model, block by block, and take it off again."""

from __future__ import annotations

import copy
import functools
import json
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar, cast

from torch import nn

from .backbones import Backbone, backbone, transformer
from .backbones.contract import is_saving
from .backbones.ending import as_forward, ending_of, is_refused, refused
from .block import PrunedBlock
from .cost import Compute
from .grid import Outputs
from .method import Method, name_of
from .plan import Plan
from .schedule import Schedule
from .scoring.backends import Backend, prepare
from .sizes import Sizes, Solve

Model = TypeVar("Model", bound=nn.Module)

_NO_GRID = (
    'has no full grid to give back from a pruned model: prune it with outputs="grid", '
    "or use restore_(model) first"
)
_NO_SIZES = (
    "cannot tell how many patches were merged into each token it is given: "
    "call the model itself, which gives the pooled features where it has no classifier"
)
_STALE = (
    "would change the number of tokens that the schedule was worked out for: "
    "use restore_(model) first, and prune_ it again afterwards"
)
_HOOKED = "see tokens with their places (a tuple, x first) instead of a tensor while it is pruned"
_BYPASSED = "are not called while it is pruned: put them on its parts, or on the block"
_LEFT_IN_PLACE = ': prune_ leaves it in place with compute="all"'
_PREPARED = "accelerate has replaced the model's forward: prune before accelerator.prepare"
_DISPATCHED = (
    "accelerate has replaced the forward of the blocks: prune before it dispatches the model, or "
    "load it without device_map"
)
_TELLS_NO_SIZES = ", and would not tell the head how many patches were merged into each token"


def attach(
    model: Model,
    schedule: Schedule,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
    solve: Solve | None = None,
) -> Model:
    """Run the model by the schedule from the next call on, whatever it was run by before.

    `solve` finds the schedule for images of another size; without it they are refused.
    """
    prepare(backend)  # compilers cannot trace the making of the kernels
    vit, inner = backbone(model), cast(Any, transformer(model))
    plan = Plan(schedule, vit.geometry, outputs)
    plan.check()
    prefix_only = compute == "needed" and plan.prefix_only
    _refuse_foreign(vit, plan, prefix_only)
    # All of it is made before any of it is put on: what fails leaves the model as it was.
    method = plan.method.bind(inner, plan.stages, vit.geometry)
    sizes = Sizes(inner, plan, solve)
    blocks = _pruned(vit, method, sizes, compute, backend)
    own = _own(vit, plan, prefix_only, compute) if plan.stages else {}
    _warn_of_hooks(vit, [pruned.block for pruned in blocks], outputs)
    restore_(model)
    method.put_on(inner)
    for pruned in blocks:
        cast(Any, pruned.block).forward = pruned.forward
    for name, value in own.items():
        setattr(inner, name, value)
    return model


def _pruned(
    vit: Backbone, method: Method, sizes: Sizes, compute: Compute, backend: Backend
) -> list[PrunedBlock]:
    """Return what runs in place of each block from the first stage on."""
    plan = sizes.plan
    tasks = plan.tasks(compute, backend, method, sizes.first())
    blocks = [
        PrunedBlock(block, vit.parts(block), task, plan, vit.call, sizes)
        for block, task in zip(vit.blocks, tasks, strict=True)
        if task is not None
    ]
    sizes.hold(blocks)
    return blocks


def _own(vit: Backbone, plan: Plan, prefix_only: bool, compute: Compute) -> dict[str, Any]:
    """What the model itself gets, by the names of its methods."""
    inner, own = cast(Any, vit.model), dict[str, Any]()
    weighs = plan.size_weighted or (prefix_only and plan.uneven)
    proportional = plan.method.proportional if weighs else None
    ending = vit.ending(prefix_only=prefix_only, proportional=proportional)
    if ending is not None and not _is_foreign(inner):
        own["forward"] = as_forward(ending)
    unserved = vit.unserved if plan.outputs == "tokens" else ()
    refusals = dict.fromkeys(unserved, _NO_GRID) | dict.fromkeys(vit.resizing, _STALE)
    refusals |= dict.fromkeys(vit.unweighed if plan.size_weighted else (), _NO_SIZES)
    own |= {name: refused(name, why) for name, why in refusals.items() if hasattr(inner, name)}
    own |= vit.saving(note_of(plan, compute))
    own["extra_repr"] = functools.partial(_described, plan, type(inner).extra_repr(inner))
    return own


def _warn_of_hooks(vit: Backbone, pruned: list[nn.Module], outputs: Outputs) -> None:
    """Hooks of the user's own that would see other things than they do in the unpruned model."""
    for number, block in enumerate(vit.blocks, start=1):
        if block not in pruned:
            continue
        if outputs == "tokens" and _hooked(block, vit):
            warnings.warn(f"the hooks on block {number} {_HOOKED}", stacklevel=4)
        if any(_hooked(each, vit) for each in vit.bypassed(block)):
            warnings.warn(f"the hooks on the attention of block {number} {_BYPASSED}", stacklevel=4)


def _hooked(module: nn.Module, vit: Backbone) -> bool:
    """Are there hooks on the module that are not the library's own?"""
    hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
    return any(getattr(hook, "__module__", "") not in vit.recorders for hook in hooks)


def sharing_copy(model: Model) -> Model:
    """A copy that can be pruned by itself and holds the same weights, not copies of them."""
    shared = {id(held): held for held in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


def restore_(model: Model) -> Model:
    """Take every trace of pruning off the model; does nothing to a model that has none.

    What a method has learned stays with the model, in `model.zerotprune`: nothing runs it.

    >>> import timm, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit"), cost=0.7)
    >>> "pruned by" in repr(model), "pruned by" in repr(restore_(model))
    (True, False)
    """
    inner, blocks = transformer(model), pruned_blocks(model)
    for pruned in blocks:
        del pruned.block.forward
    if blocks:
        blocks[0].task.method.take_off(inner)
    if ending_of(inner) is not None:
        del inner.forward
    for name, value in list(inner.__dict__.items()):
        described = isinstance(value, functools.partial) and value.func is _described
        if described or is_refused(value) or is_saving(value):
            delattr(inner, name)
    return model


def note_of(plan: Plan, compute: Compute) -> dict[str, Any]:
    """Return all that `prune_` needs to prune a model in the same way, as JSON has it."""
    schedule = json.loads(plan.schedule.to_json())
    return {"schedule": schedule, "compute": compute, "outputs": plan.outputs}


def current_plan(model: nn.Module) -> Plan | None:
    """Return the plan that a model is pruned by, if it is."""
    blocks = pruned_blocks(model)
    return blocks[0].plan if blocks else None


def pruned_blocks(model: nn.Module) -> list[PrunedBlock]:
    """Return what runs in place of the model's blocks, in their order."""
    found = (pruned_block(module) for module in transformer(model).modules())
    return [pruned for pruned in found if pruned is not None]


def pruned_block(block: nn.Module) -> PrunedBlock | None:
    """Return what runs in place of one block, if anything of ours does."""
    owner = getattr(block.__dict__.get("forward"), "__self__", None)
    return owner if isinstance(owner, PrunedBlock) else None


def exchange_blocks(model: nn.Module, make: Callable[[PrunedBlock], PrunedBlock]) -> None:
    """Replace every pruned block of a model by what `make` makes of it."""
    for pruned in pruned_blocks(model):
        cast(Any, pruned.block).forward = make(pruned).forward


def _described(plan: Plan, others: str) -> str:
    """What `repr(model)` says of the pruning."""
    unpruned = Plan(Schedule(), plan.geometry).gmacs()
    blocks = ", ".join(map(str, plan.stages))
    line = f"pruned by {name_of(plan.method)} at blocks {blocks}: "
    if plan.method.adaptive:
        line += "as many tokens as an image needs"
    else:
        line += f"{plan.gmacs():.3g} of {unpruned:.3g} GMACs"
    if plan.outputs == "grid":
        line += ", every patch comes out"
    return f"{others}, {line}" if others else line


def _is_foreign(model: Any) -> bool:
    """Has the model a forward that somebody else put on it?"""
    return "forward" in model.__dict__ and ending_of(model) is None


def _refuse_foreign(vit: Backbone, plan: Plan, prefix_only: bool) -> None:
    for number, block in enumerate(vit.blocks, start=1):
        if "forward" in block.__dict__ and pruned_block(block) is None:
            if hasattr(block, "_hf_hook"):
                raise TypeError(_DISPATCHED)
            raise TypeError(f"block {number} has a forward that was replaced by something else")
    if _is_foreign(vit.model) and (prefix_only or plan.size_weighted):
        if hasattr(vit.model, "_original_forward"):
            raise TypeError(_PREPARED)
        raise TypeError(
            "the model has a forward that was replaced by something else"
            + (_LEFT_IN_PLACE if prefix_only else _TELLS_NO_SIZES)
        )
