"""Put a plan on a model and take it off again, block by block."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from torch import nn

from .backbones import Backbone, BlockCall, backbone, transformer
from .backbones.stand_in import as_forward, is_refused, refused, stand_in_of
from .block import Parts, Task, run, run_prefix_only
from .cost import Compute
from .grid import Outputs
from .methods import name_of
from .plan import Plan
from .schedule import Schedule
from .scoring.backends import Backend, prepare
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
    restore_(model)
    if not plan.stages:
        return model
    for block, task in zip(vit.blocks, plan.tasks(compute, backend), strict=True):
        if task is not None:
            parts, call = vit.parts(block), vit.call
            block.forward = functools.partial(_pruned_forward, parts, task, plan, call)
    weighted = vit.size_weighted(plan.method.proportional) if plan.uneven else None
    if prefix_only:
        inner.forward = as_forward(vit.prefix_only(weighted))
    elif plan.size_weighted and weighted is not None:
        inner.forward = as_forward(weighted)
    elif "forward" not in inner.__dict__ and (checked := vit.checked()) is not None:
        inner.forward = as_forward(checked)
    refusals = dict.fromkeys(vit.unserved if outputs == "tokens" else (), _NO_GRID)
    refusals |= dict.fromkeys(vit.unweighed if plan.size_weighted else (), _NO_SIZES)
    for name, why in refusals.items():
        if hasattr(inner, name):
            setattr(inner, name, refused(name, why))
    inner.extra_repr = functools.partial(_described, plan, type(inner).extra_repr(inner))
    return model


def restore_(model: Model) -> Model:
    """Take every trace of pruning off the model; does nothing to a model that has none.

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
) -> Any:
    """Stands in for a block's forward. The plan is only carried, for `gmacs` and `restore_`."""
    x, others = call.read(args, given)
    if prefix_only and task.last:  # some libraries hand a keyword to all blocks alike
        return call.give(run_prefix_only(parts, task, x, others))
    return call.give(run(parts, task, x, others, left))


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


def _refuse_foreign(vit: Backbone, plan: Plan, prefix_only: bool) -> None:
    for number, block in enumerate(vit.blocks, start=1):
        if "forward" in block.__dict__ and plan_of(block) is None:
            raise TypeError(f"block {number} has a forward that was replaced by something else")
    foreign = "forward" in vit.model.__dict__ and stand_in_of(vit.model) is None
    if foreign and (prefix_only or plan.size_weighted):
        raise TypeError(
            "the model has a forward that was replaced by something else"
            + (_LEFT_IN_PLACE if prefix_only else _TELLS_NO_SIZES)
        )
