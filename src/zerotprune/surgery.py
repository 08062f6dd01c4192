"""Attach a plan to a model, block by block, and take it off again.

A schedule is solved for one number of patches; at any other its counts would come to another cost.
Models that take images of any size (timm's `dynamic_img_size`, transformers'
`interpolate_pos_encoding`) solve it again for each size they meet, if it has a budget; see `Sizes`.
"""

from __future__ import annotations

import copy
import functools
import json
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

from torch import nn

from .backbones import Backbone, backbone, transformer, unwrap
from .backbones.contract import is_saving
from .backbones.ending import as_forward, ending_of, is_foreign, is_refusal, make_refusal
from .backbones.patch_embedding import attach_products, detach_products
from .block import PrunedBlock
from .cost import Compute
from .dials import dials_of
from .method import Method, name_of
from .plan import Plan
from .schedule import Schedule
from .scoring.scorer import Backend, prepare
from .tokens import Outputs

Model = TypeVar("Model", bound=nn.Module)

#: a plan and another number of patches → the schedule for it; ValueError says why there is none
Solve = Callable[[Plan, int], Schedule]

#: positions of a dial at which a method shows the blocks that it may put stages at
_POSITIONS = (0.5, 1.0)

_NO_GRID = (
    'needs every patch, and a pruned model has fewer: prune it with outputs="grid", or call '
    "restore_(model) first"
)
_NO_SIZES = (
    "does not know how many patches were merged into each token: call the model itself, which "
    "returns the pooled features if it has no classifier"
)
_STALE = (
    "would change the number of tokens that the schedule was solved for: call restore_(model) "
    "first, and prune_ again afterwards"
)
_REPLICATED = (
    "would run the blocks of one GPU on all: use torch.nn.parallel.DistributedDataParallel, or one "
    "GPU"
)
_HOOKED = "get a tuple of tokens (x first) instead of a tensor while the model is pruned"
_PREPARED = "accelerate has replaced the model's forward: prune before accelerator.prepare"
_DISPATCHED = (
    "accelerate has replaced the forward of the blocks: prune before it dispatches the model, or "
    "load it without device_map"
)


def attach(
    model: Model,
    schedule: Schedule,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
    solve: Solve | None = None,
) -> Model:
    """Prune a model by a schedule; what it was pruned by before is taken off.

    Args:
        model: The model to change.
        schedule: Stages and their method.
        compute: As for `prune_`.
        backend: As for `prune_`.
        outputs: As for `prune_`.
        solve: Returns the schedule for images of another size; None refuses them.
    """
    prepare(backend)  # compilers cannot trace it
    vit, inner = backbone(model), cast(Any, transformer(model))
    plan = Plan(schedule, vit.geometry, outputs)
    plan.check()
    prefix_only = compute == "needed" and plan.prefix_only
    _refuse_foreign(vit, plan, prefix_only)
    # Make everything before attaching anything: a call that fails leaves the model as it was.
    method = plan.method.bind(inner, plan.stages, vit.geometry)
    sizes = Sizes(plan, solve if vit.any_size else None)
    blocks = _pruned_blocks(vit, method, sizes, compute, backend)
    attributes = _attributes(vit, plan, prefix_only, compute) if plan.stages else {}
    if len({pruned.block for pruned in blocks}) < len(blocks):
        raise TypeError("two blocks of this model are one module, which can have only one stage")
    for pruned in blocks:
        vit.ending_class.refuse_additions(vit.model, pruned.bypassed)
        if outputs == "tokens" and vit.has_hooks(pruned.block):
            warnings.warn(f"the hooks on block {pruned.task.block} {_HOOKED}", stacklevel=3)
    restore_(model)
    method.put_on(inner)
    for pruned in blocks:
        cast(Any, pruned.block).forward = pruned.forward
    for name, value in attributes.items():
        setattr(inner, name, value)
    if plan.stages:
        attach_products(inner)
    return model


def _pruned_blocks(
    vit: Backbone, method: Method, sizes: Sizes, compute: Compute, backend: Backend
) -> list[PrunedBlock]:
    """Make what replaces each block from the first stage on."""
    plan = sizes.plan
    tasks = plan.tasks(compute, backend, method, sizes.first_block())
    sizes.blocks = [
        PrunedBlock(vit, block, task, plan, sizes)
        for block, task in zip(vit.blocks, tasks, strict=True)
        if task is not None
    ]
    return sizes.blocks


def _attributes(vit: Backbone, plan: Plan, prefix_only: bool, compute: Compute) -> dict[str, Any]:
    """Make what replaces methods of the model itself, by name."""
    inner, attributes = cast(Any, vit.model), dict[str, Any]()
    weighs = plan.size_weighted or (prefix_only and plan.uneven)
    proportional = plan.method.proportional if weighs else None
    ending = vit.ending(prefix_only=prefix_only, proportional=proportional)
    if ending is not None and not is_foreign(inner):
        attributes["forward"] = as_forward(ending)
    unserved = vit.unserved if plan.outputs == "tokens" else ()
    refusals = dict.fromkeys(unserved, _NO_GRID) | dict.fromkeys(vit.resizing, _STALE)
    refusals |= dict.fromkeys(vit.unweighed if plan.size_weighted else (), _NO_SIZES)
    attributes |= {
        name: make_refusal(name, why) for name, why in refusals.items() if hasattr(inner, name)
    }
    attributes["_replicate_for_data_parallel"] = make_refusal("torch.nn.DataParallel", _REPLICATED)
    attributes |= vit.saving(note_of(plan, compute))
    attributes["extra_repr"] = functools.partial(_describe, plan, type(inner).extra_repr(inner))
    return attributes


def sharing_copy(model: Model) -> Model:
    """Copy a model, but share its weights: the copy can be pruned by itself."""
    unwrap(model)  # raises for anything but a model
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


def restore_(model: Model) -> Model:
    """Undo `prune_`: the model is what it was before, bit for bit.

    Pruned models inside it are restored too, and if it is a part of a pruned model, that model.
    What a method has learned stays in `model.zerotprune`, and nothing runs it.

    Args:
        model: A pruned model; an unpruned one is left as it is.

    >>> import timm, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit"), cost=0.7)
    >>> "pruned by" in repr(model), "pruned by" in repr(restore_(model))
    (True, False)
    """
    attached_to = (pruned.vit.model for pruned in pruned_blocks(model))
    for inner in dict.fromkeys([transformer(model), *attached_to]):
        _take_off(inner)
    return model


def _take_off(inner: nn.Module) -> None:
    """Undo what `attach` did to a Transformer."""
    blocks = pruned_blocks(inner)
    for pruned in blocks:
        del pruned.block.forward
    if blocks:
        blocks[0].task.method.take_off(inner)
    if ending_of(inner) is not None:
        del inner.forward
    detach_products(inner)
    for name, value in list(inner.__dict__.items()):
        described = isinstance(value, functools.partial) and value.func is _describe
        if described or is_refusal(value) or is_saving(value):
            delattr(inner, name)


def note_of(plan: Plan, compute: Compute) -> dict[str, Any]:
    """Return what `prune_` needs to prune a model in the same way, as JSON data."""
    schedule = json.loads(plan.schedule.to_json())
    return {"schedule": schedule, "compute": compute, "outputs": plan.outputs}


def current_plan(model: nn.Module) -> Plan | None:
    """Return the plan that a model is pruned by; None if it is not pruned."""
    blocks = pruned_blocks(model)
    return blocks[0].plan if blocks else None


def pruned_blocks(model: nn.Module) -> list[PrunedBlock]:
    """Return what replaces the model's blocks, in their order."""
    pruned = (pruned_block(module) for module in transformer(model).modules())
    return [block for block in pruned if block is not None]


def pruned_block(block: nn.Module) -> PrunedBlock | None:
    """Return what replaces one block; None if it is not pruned."""
    owner = getattr(block.__dict__.get("forward"), "__self__", None)
    return owner if isinstance(owner, PrunedBlock) else None


def exchange_blocks(model: nn.Module, make: Callable[[PrunedBlock], PrunedBlock]) -> None:
    """Replace every pruned block of a model by what `make` returns for it."""
    for pruned in pruned_blocks(model):
        cast(Any, pruned.block).forward = make(pruned).forward


def _describe(plan: Plan, others: str) -> str:
    """Return what `repr(model)` says about the pruning."""
    unpruned = Plan(Schedule(), plan.geometry).gmacs()
    blocks = ", ".join(map(str, plan.stages))
    line = f"pruned by {name_of(plan.method)} at blocks {blocks}: "
    if plan.method.adaptive:
        line += "the number of tokens depends on the image"
    else:
        line += f"{plan.gmacs():.3g} of {unpruned:.3g} GMACs"
    if plan.outputs == "grid":
        line += ", every patch is returned"
    return f"{others}, {line}" if others else line


def _refuse_foreign(vit: Backbone, plan: Plan, prefix_only: bool) -> None:
    """Refuse forwards that something else replaced, if pruning has to replace them."""
    for number, block in enumerate(vit.blocks, start=1):
        if "forward" in block.__dict__ and pruned_block(block) is None:
            if hasattr(block, "_hf_hook"):
                raise TypeError(_DISPATCHED)
            raise TypeError(f"the forward of block {number} was replaced by something else")
    if is_foreign(vit.model) and (prefix_only or plan.size_weighted):
        if hasattr(vit.model, "_original_forward"):
            raise TypeError(_PREPARED)
        why = (
            'prune_ keeps it with compute="all"'
            if prefix_only
            else "it does not pass on how many patches were merged into each token"
        )
        raise TypeError(f"the forward of the model was replaced by something else: {why}")


class Sizes:
    """The blocks of a pruned model for every image size that it has met.

    Args:
        plan: For the size that the model was pruned at.
        solve: Returns the schedule for another size; None refuses all other sizes.
    """

    def __init__(self, plan: Plan, solve: Solve | None) -> None:
        self.plan, self.solve = plan, solve
        self.blocks: Sequence[PrunedBlock] = ()  # for the size that the model was pruned at
        self._solved: dict[int, dict[int, PrunedBlock]] = {}  # patches → block number → block

    def first_block(self) -> int | None:
        """Return the first block that may have a stage at any size; None for that of the plan.

        At another size the budget may need another dial, or put tokens at other blocks.
        """
        plan = self.plan
        if self.solve is None or plan.schedule.budget is None or not plan.stages:
            return None
        schedules = [dial(at) for dial in dials_of(plan.method, plan.geometry) for at in _POSITIONS]
        stages = [stage for schedule in schedules if schedule for stage in schedule.stages]
        return min([plan.first, *(stage.block for stage in stages)])

    def block(self, number: int, patches: int) -> PrunedBlock:
        """Return a block, counted from 1, for images of this many patches."""
        self._solve_for(patches)
        return self._solved[patches][number]

    def _solve_for(self, patches: int) -> None:
        """Solve for a size that is new. Compilers do not trace this."""
        if patches not in self._solved:
            self._solved[patches] = self._blocks_at(patches)

    def _blocks_at(self, patches: int) -> dict[int, PrunedBlock]:
        vit = self.blocks[0].vit
        try:
            plan = self._plan_at(patches)
            method = plan.method.bind(vit.model, plan.stages, plan.geometry)
        except ValueError as error:
            raise ValueError(
                f"the model was pruned for images of {self.plan.geometry.patches} patches, got "
                f"{patches}: {error}"
            ) from None
        first = self.blocks[0].task
        tasks = plan.tasks(first.compute, first.backend, method, first.block)
        task_of = {task.block: task for task in tasks if task is not None}
        return {
            pruned.task.block: PrunedBlock(vit, pruned.block, task_of[pruned.task.block], plan)
            for pruned in self.blocks
        }

    def _plan_at(self, patches: int) -> Plan:
        plan, first = self.plan, self.blocks[0].task.block
        if self.solve is None:
            raise ValueError("this run takes one size, so resize the model or the images first")
        if plan.geometry.needs_grid and plan.geometry.head:
            raise ValueError("the cost of its feature maps at another size is unknown")
        solved = Plan(self.solve(plan, patches), plan.geometry.at(patches), plan.outputs)
        solved.check()
        if solved.stages and solved.first < first:
            raise ValueError(
                f"its method would start at block {solved.first}, but starts at block {first} at "
                "the size that the model was pruned for"
            )
        return solved


# What `torch.compiler.assume_constant_result` sets, which would import the whole compiler.
Sizes._solve_for._dynamo_marked_constant = True  # type: ignore[attr-defined]
