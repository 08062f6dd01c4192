"""Put a plan on a model and take it off again, block by block."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from .backbones import Backbone, BlockCall, backbone, transformer
from .backbones.stand_in import as_forward, is_refused, refused, stand_in_of
from .block import run, run_prefix_only
from .cost import Compute
from .grid import Outputs
from .learned import Learned, drop_drawn, learned_for, put_on
from .methods import name_of
from .plan import Plan
from .schedule import Schedule
from .scoring.backends import Backend, prepare
from .task import Parts, Task
from .tokens import Tokens

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
_TELLS_NO_SIZES = ", and would not tell the head how many patches were merged into each token"


def attach(
    model: Model,
    schedule: Schedule,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
) -> Model:
    """Run the model by the schedule from the next call on, whatever it was run by before."""
    prepare(backend)  # a compiler that sees who scores could not follow the making of them
    vit, inner = backbone(model), cast(Any, transformer(model))
    plan = Plan(schedule, vit.geometry, outputs)
    plan.check()
    prefix_only = compute == "needed" and plan.prefix_only
    _refuse_foreign(vit, plan, prefix_only)
    # All of it is made before any of it is put on: what fails leaves the model as it was.
    learned = learned_for(inner, plan.method, plan.stages, vit.geometry)
    pruned = _forwards(vit, plan, compute, backend, learned) if plan.stages else {}
    own = _own(vit, plan, prefix_only) if plan.stages else {}
    _tell_of_hooks(vit, pruned, outputs)
    restore_(model)
    if learned is not None:
        put_on(inner, plan.method, learned)
    for block, forward in pruned.items():
        block.forward = forward
    for name, value in own.items():
        setattr(inner, name, value)
    return model


def _forwards(
    vit: Backbone, plan: Plan, compute: Compute, backend: Backend, learned: Learned | None
) -> dict[nn.Module, functools.partial[Any]]:
    """For each block that we run what stands in for its forward."""
    tasks = plan.tasks(compute, backend)
    if learned is not None:
        tasks = [
            task
            if task is None or task.stage is None
            else replace(task, weights=learned.at(task.stage.block))
            for task in tasks
        ]
    return {
        block: functools.partial(_pruned_forward, vit.parts(block), task, plan, vit.call)
        for block, task in zip(vit.blocks, tasks, strict=True)
        if task is not None
    }


def _own(vit: Backbone, plan: Plan, prefix_only: bool) -> dict[str, Any]:
    """What the model itself gets, by the names of its methods."""
    inner, own = cast(Any, vit.model), dict[str, Any]()
    weighted = vit.size_weighted(plan.method.proportional) if plan.uneven else None
    if prefix_only:
        own["forward"] = as_forward(vit.prefix_only(weighted))
    elif plan.size_weighted and weighted is not None:
        own["forward"] = as_forward(weighted)
    elif not _is_foreign(inner) and (checked := vit.checked()) is not None:
        own["forward"] = as_forward(checked)
    unserved = vit.unserved if plan.outputs == "tokens" else ()
    refusals = dict.fromkeys(unserved, _NO_GRID) | dict.fromkeys(vit.resizing, _STALE)
    refusals |= dict.fromkeys(vit.unweighed if plan.size_weighted else (), _NO_SIZES)
    own |= {name: refused(name, why) for name, why in refusals.items() if hasattr(inner, name)}
    own["extra_repr"] = functools.partial(_described, plan, type(inner).extra_repr(inner))
    return own


def _tell_of_hooks(vit: Backbone, pruned: Mapping[nn.Module, object], outputs: Outputs) -> None:
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
    """Take every trace of pruning off the model; does nothing to a model that has none. What a
    method has learned stays with the model, in `model.zerotprune`: nothing runs it.

    >>> import timm, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit"), cost=0.7)
    >>> "pruned by" in repr(model), "pruned by" in repr(restore_(model))
    (True, False)
    """
    inner = transformer(model)
    for module in inner.modules():
        if plan_of(module) is not None:
            del module.forward
    if stand_in_of(inner) is not None:
        del inner.forward
    drop_drawn(inner)
    for name, value in list(inner.__dict__.items()):
        described = isinstance(value, functools.partial) and value.func is _described
        if described or is_refused(value):
            delattr(inner, name)
    return model


def current_plan(model: nn.Module) -> Plan | None:
    """The plan that a model is pruned by, if it is."""
    plans = (plan_of(module) for module in transformer(model).modules())
    return next((plan for plan in plans if plan is not None), None)


def pruned_blocks(model: nn.Module) -> list[tuple[nn.Module, Task, BlockCall]]:
    """The blocks that run our forward, each with its task and how it is called."""
    pruned = (
        (module, module.__dict__["forward"].args)
        for module in transformer(model).modules()
        if plan_of(module) is not None
    )
    return [(module, task, call) for module, (_, task, _, call) in pruned]


def retask(model: nn.Module, **changes: Any) -> None:
    """Change the tasks of all blocks that run our forward."""
    for block, task, call in pruned_blocks(model):
        ours = block.__dict__["forward"]
        parts, _, plan, _ = ours.args
        task = replace(task, **changes)
        cast(Any, block).forward = functools.partial(ours.func, parts, task, plan, call)


def plan_of(module: nn.Module) -> Plan | None:
    """The plan that a block is run by, if it is."""
    forward = module.__dict__.get("forward")
    if isinstance(forward, functools.partial) and forward.func is _pruned_forward:
        return cast(Plan, forward.args[2])
    return None


def _pruned_forward(
    parts: Parts,
    task: Task,
    plan: Plan,
    call: BlockCall,
    *args: Any,
    prefix_only: bool = False,
    left: list[Tokens] | None = None,
    **given: Any,
) -> Tensor | Tokens:
    """Stands in for a block's forward. The plan is only carried, for `gmacs` and `restore_`."""
    x, others = call.read(args, given)
    if task.learning is not None and task.learning.on:
        return task.learning.run(parts, task, x, others, left)
    if prefix_only and task.last:  # some libraries hand a keyword to all blocks alike
        return run_prefix_only(parts, task, x, others)
    return run(parts, task, x, others, left)


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
    return "forward" in model.__dict__ and stand_in_of(model) is None


def _refuse_foreign(vit: Backbone, plan: Plan, prefix_only: bool) -> None:
    for number, block in enumerate(vit.blocks, start=1):
        if "forward" in block.__dict__ and plan_of(block) is None:
            raise TypeError(f"block {number} has a forward that was replaced by something else")
    if _is_foreign(vit.model) and (prefix_only or plan.size_weighted):
        raise TypeError(
            "the model has a forward that was replaced by something else"
            + (_LEFT_IN_PLACE if prefix_only else _TELLS_NO_SIZES)
        )
