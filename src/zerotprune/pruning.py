"""Put a method on a model and take it off again; what it costs, and the schedule for a budget."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, cast, get_args

from torch import Tensor, nn

from .backbones import backbone, unwrap
from .backbones.shortcut import entrance, is_entrance
from .block import Method, Parts, Task, run, run_for_prefix
from .cost import Compute, Convention, Geometry, Load, solve, total_macs
from .kernels import Backend, prepare
from .methods import ZeroTPrune
from .schedule import Schedule
from .tokens import Tokens

Model = TypeVar("Model", bound=nn.Module)


def prune_(
    model: Model,
    schedule: Schedule,
    method: Method | None = None,
    *,
    compute: Compute = "needed",
    backend: Backend = "auto",
) -> Model:
    """Prune tokens by the schedule from the next call on; in place, no training.

    The weights and their names stay as they are. Pruning again replaces the schedule, `restore_`
    takes it off. The method is Zero-TPrune with its defaults unless another is given.

    Where the head reads the prefix tokens alone, as most do that have a CLS token, the last block
    is computed for these only: the logits are the same but for rounding. `forward_features`, and
    hooks in the last block, get all tokens as ever. With compute="all" the last block is
    always computed for all tokens.

    Scores are computed by `backend`: "reference" (torch), "triton" (fused kernels for GPUs), or
    "auto": the kernels wherever they run and give the same result.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"prune_ takes a Schedule, got {type(schedule).__name__}")
    method = ZeroTPrune() if method is None else method
    if not isinstance(method, Method):
        raise TypeError(f"{method!r} is not a method of token reduction: see zerotprune.methods")
    _check_compute(compute)
    prepare(backend)
    found, inner = backbone(model), cast(Any, unwrap(model))
    _refuse_foreign(found.blocks)
    plan = Plan(schedule, method, found.geometry)
    plan.check()
    short = compute == "needed" and plan.ends_early
    if short:
        _refuse_foreign_entrance(inner)
    restore_(model)
    tasks = plan.tasks(compute, backend)
    for block, task in zip(found.blocks, tasks, strict=True):
        if task is not None:
            block.forward = functools.partial(_pruned_forward, found.parts(block), task, plan)
    if short:
        inner.forward = entrance(found.shortcut())
    if any(tasks) and hasattr(inner, "forward_intermediates"):
        inner.forward_intermediates = _no_intermediates
    return model


def restore_(model: Model) -> Model:
    """Take every trace of pruning off the model; does nothing to a model that has none."""
    inner = unwrap(model)
    for module in inner.modules():
        if _plan_of(module) is not None:
            del module.forward
    if is_entrance(inner.__dict__.get("forward")):
        del inner.forward
    if inner.__dict__.get("forward_intermediates") is _no_intermediates:
        del inner.forward_intermediates
    return model


def gmacs(
    model: nn.Module,
    schedule: Schedule | None = None,
    method: Method | None = None,
    convention: Convention = "full",
    *,
    compute: Compute = "all",
) -> float:
    """Multiply-accumulates for one picture, in units of 10⁹.

    Of the model as it is, or as the schedule would make it. The convention "full" counts all matrix
    products with the patch embedding; "paper" is the paper's, which leaves that out and counts the
    norms. Both count all of the last block, as the paper and every other method do; with
    compute="needed", only what a pruned model does of it where its head reads the prefix tokens
    alone.
    """
    _check_compute(compute)
    if schedule is None:
        plan = current_plan(model) or Plan(Schedule(), ZeroTPrune(), backbone(model).geometry)
    else:
        plan = Plan(schedule, method or ZeroTPrune(), backbone(model).geometry)
        plan.check()
    return plan.gmacs(convention, compute=compute)


def schedule_for(
    model: nn.Module,
    *,
    gmacs: float | None = None,
    keep: float | None = None,
    method: Method | None = None,
    convention: Convention = "full",
) -> Schedule:
    """A schedule of the paper's form for a budget, met within 1 %.

    The budget is `gmacs`, or `keep`: the share of the unpruned model's cost.
    """
    if (gmacs is None) == (keep is None):
        raise ValueError("schedule_for takes a budget either as gmacs=… or as keep=…")
    geometry, method = backbone(model).geometry, method or ZeroTPrune()

    def price(schedule: Schedule) -> float:
        return Plan(schedule, method, geometry).gmacs(convention)

    unpruned = price(Schedule())
    if keep is not None:
        if not 0 < keep <= 1:
            raise ValueError(f"keep must be in (0, 1], got {keep}")
        gmacs = keep * unpruned
    assert gmacs is not None
    if not gmacs > 0:
        raise ValueError(f"gmacs must be a positive number, got {gmacs}")
    return solve(geometry, gmacs, price, unpruned)


class Plan:
    """A schedule and a method worked out for one geometry: token counts, tasks and cost."""

    def __init__(self, schedule: Schedule, method: Method, geometry: Geometry) -> None:
        self.schedule, self.method, self.geometry = schedule, method, geometry
        acting = (stage for stage in schedule.stages if stage.prunes or method.adaptive)
        self.stages = {stage.block: stage for stage in acting}
        self.last_stage = max(self.stages, default=0)
        #: may the last block be computed for the prefix tokens alone?
        self.ends_early = bool(self.stages) and not geometry.pools_patches

    def check(self) -> None:
        """Raise ValueError if the model cannot follow the schedule."""
        patches, depth = self.geometry.patches, self.geometry.depth
        # What acts inside a block can still spare the last block's MLP.
        last = depth if self.method.place == "middle" else depth - 1
        for stage in self.schedule.stages:
            if stage.block > last:
                raise ValueError(
                    f"a stage at block {stage.block}: stages go after blocks 1 to {last}, "
                    f"this model has {depth} blocks"
                )
            self.method.check(stage, patches, self.geometry)
            patches = self.method.kept(stage, patches)
            if patches < 1:
                raise ValueError(f"the stage at block {stage.block} leaves no patch token")

    def acts_early(self, compute: Compute) -> bool:
        """Do stages come before their block's MLP? The MLP takes each token by itself, so what is
        dropped after it need not go through it, unless the choice depends on what comes out."""
        if self.method.place == "middle":
            return True
        return compute == "needed" and self.method.waits_for() != "mlp"

    def tasks(self, compute: Compute, backend: Backend) -> list[Task | None]:
        """For each block what it has to do; None for the blocks that the library runs itself."""
        if not self.stages:
            return [None] * self.geometry.depth
        remember = self.method.wants_history()
        first = 1 if remember else min(self.stages)
        depth = self.geometry.depth
        return [
            Task(
                method=self.method,
                stage=self.stages.get(block),
                geometry=self.geometry,
                last=block == depth,
                early=self.acts_early(compute),
                remember=remember and block <= self.last_stage,
                backend=backend,
            )
            if block >= first
            else None
            for block in range(1, depth + 1)
        ]

    def loads(
        self, kept: Sequence[int] | None = None, compute: Compute = "all"
    ) -> tuple[list[Load], int]:
        """What each block has to handle, and how many tokens reach the head.

        `kept` are the patch tokens that each stage left, where they differ from picture to picture.
        """
        counts = None if kept is None else iter(kept)
        patches, prefix, loads = self.geometry.patches, self.geometry.prefix, []
        for block in range(1, self.geometry.depth + 1):
            own, tokens = 0, prefix + patches
            if self.method.wants_history() and block <= self.last_stage:
                own += self.geometry.votes(block, patches)
            if (stage := self.stages.get(block)) is not None:
                own += self.method.macs(stage, patches, self.geometry)
                patches = self.method.kept(stage, patches) if counts is None else next(counts)
            after = prefix + patches if self.acts_early(compute) else tokens
            loads.append(Load(tokens, tokens, after, own))
        if compute == "needed" and self.ends_early:
            loads[-1] = Load(loads[-1].attention, prefix, prefix, 0)
            return loads, prefix
        return loads, prefix + patches

    def gmacs(
        self,
        convention: Convention = "full",
        kept: Sequence[int] | None = None,
        compute: Compute = "all",
    ) -> float:
        loads, left = self.loads(kept, compute)
        return total_macs(self.geometry, loads, left, convention) / 1e9


def current_plan(model: nn.Module) -> Plan | None:
    """The plan that a model is pruned by, if it is."""
    plans = (_plan_of(module) for module in unwrap(model).modules())
    return next((plan for plan in plans if plan is not None), None)


def pruned_blocks(model: nn.Module) -> list[tuple[nn.Module, Task]]:
    """The blocks that run our forward, each with its task."""
    found = (
        (module, module.__dict__["forward"])
        for module in unwrap(model).modules()
        if _plan_of(module) is not None
    )
    return [(module, forward.args[1]) for module, forward in found]


def _plan_of(module: nn.Module) -> Plan | None:
    forward = module.__dict__.get("forward")
    if isinstance(forward, functools.partial) and forward.func is _pruned_forward:
        return cast(Plan, forward.args[2])
    return None


def _pruned_forward(
    parts: Parts,
    task: Task,
    plan: Plan,
    x: Tensor | Tokens,
    *args: Any,
    prefix_alone: bool = False,
    **given: Any,
) -> Tensor | Tokens:
    """Stands in for a block's forward. The plan is only carried, for `gmacs` and `restore_`."""
    masked = args or given.pop("attn_mask", None) is not None or given.pop("is_causal", False)
    if masked:
        raise ValueError("a pruned model takes no attention mask: it would not fit what is left")
    return (run_for_prefix if prefix_alone else run)(parts, task, x, given)


def _no_intermediates(*args: Any, **given: Any) -> NoReturn:
    raise ValueError(
        "forward_intermediates has no full grid to give back from a pruned model: "
        "use restore_(model) first, or trace(model, images) to see which patches stay"
    )


def _refuse_foreign(blocks: Any) -> None:
    for number, block in enumerate(blocks, start=1):
        if "forward" in block.__dict__ and _plan_of(block) is None:
            raise TypeError(f"block {number} has a forward that was replaced by something else")


def _refuse_foreign_entrance(model: nn.Module) -> None:
    forward = model.__dict__.get("forward")
    if forward is not None and not is_entrance(forward):
        raise TypeError(
            "the model has a forward that was replaced by something else: "
            'prune_ leaves it in place with compute="all"'
        )


def _check_compute(compute: str) -> None:
    if compute not in get_args(Compute):
        raise ValueError(f'compute must be "needed" or "all", got {compute!r}')
