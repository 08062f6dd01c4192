"""Put a method on a model and take it off again; what it costs, and the schedule for a budget."""

from __future__ import annotations

import functools
from typing import Any, NoReturn, TypeVar, cast, get_args

from torch import Tensor, nn

from .backbones import backbone, unwrap
from .backbones.prefix_only import entrance, is_entrance
from .block import Method, Parts, Task, run, run_for_prefix
from .budgets.tuned import tuned_for
from .cost import Compute, Convention, solve
from .methods import ZeroTPrune
from .plan import Plan
from .schedule import Schedule
from .scoring.backends import Backend, prepare
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

    With compute="needed" nothing is computed that nobody reads, and the logits are the same but for
    rounding: a token that a stage drops skips its block's MLP, and where the head reads the prefix
    tokens alone, as most do that have a CLS token, the last block is computed for these only.
    `forward_features`, and hooks in the last block, get all tokens as ever. With compute="all" all
    of this is computed.

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
    norms. Both count each block for all tokens that enter it, as the paper and every other method
    do; with compute="needed", only what `prune_` computes by default.
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
    tuned: bool = True,
) -> Schedule:
    """A schedule for a budget, met within 1 %: the one that was searched for this very model and
    budget if there is one (`zerotprune.tuned`) and `tuned` is left on, else of the paper's form.

    The budget is `gmacs`, or `keep`: the share of the unpruned model's cost.
    """
    if (gmacs is None) == (keep is None):
        raise ValueError("schedule_for takes a budget either as gmacs=… or as keep=…")
    geometry, method = backbone(model).geometry, method or ZeroTPrune()

    def price(schedule: Schedule) -> float | None:
        return Plan(schedule, method, geometry).price(convention)

    unpruned = Plan(Schedule(), method, geometry).gmacs(convention)
    if keep is not None:
        if not 0 < keep <= 1:
            raise ValueError(f"keep must be in (0, 1], got {keep}")
        gmacs = keep * unpruned
    assert gmacs is not None
    if not gmacs > 0:
        raise ValueError(f"gmacs must be a positive number, got {gmacs}")
    searched = None
    if tuned and convention == "full":
        searched = tuned_for(model, geometry.tokens, gmacs, repr(method))
    return searched or solve(geometry, gmacs, price, unpruned)


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
