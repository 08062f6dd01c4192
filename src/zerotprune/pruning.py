"""Prune a model to a budget or by a schedule, take it off again, and say what it costs."""

from __future__ import annotations

from typing import TypeVar, get_args

from torch import Tensor, nn

from .backbones import backbone
from .budgets import fit, schedule_for, solve_at
from .cost import Compute, Convention
from .grid import Outputs
from .method import Method
from .plan import Plan
from .schedule import Schedule
from .scoring.backends import Backend
from .surgery import attach, current_plan, restore_, sharing_copy

__all__ = ["gmacs", "prune_", "pruned", "restore_"]

Model = TypeVar("Model", bound=nn.Module)


def prune_(
    model: Model,
    schedule: Schedule | None = None,
    *,
    cost: float | None = None,
    gmacs: float | None = None,
    speedup: float | None = None,
    example: Tensor | None = None,
    method: Method | str | None = None,
    tuned: bool = False,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
) -> Model:
    """Prune a model's tokens from the next call on; in place, no training.

    The weights and their names stay as they are. Pruning again replaces what was there, `restore_`
    takes it off; a call that fails changes nothing.

    Args:
        model: A Vision Transformer of timm, transformers, torchvision or open_clip.
        schedule: Stages and their method. Give either this or a budget. One that was solved for a
            budget at another number of patches is solved anew for this model's.
        cost: The budget as a share of the unpruned model's compute.
        gmacs: The budget in GMACs.
        speedup: The budget as times the unpruned model's speed, measured here on `example`.
        example: A batch of images on the model's device, for `speedup`.
        method: A method or its name, for a budget. Default: Fold.
        tuned: Take the schedule that was searched for this model and budget.
        compute: "needed" computes nothing that the head does not read: dropped tokens skip their
            block's MLP, and a head that reads the prefix tokens alone gets a last block for these
            alone. The logits are the same but for rounding. `forward_features`, and hooks in the
            last block, get all tokens. "all" computes everything.
        backend: What computes the scores: "reference" (torch), "triton" (kernels for GPUs), or
            "auto", the kernels wherever they run and give the same result.
        outputs: "tokens" lets the remaining tokens leave the blocks. "grid" gives a vector for
            every patch, in the grid's order, as the unpruned model does: for dense heads, for
            `forward_intermediates`, and for hooks on blocks. A patch has the vector of the token
            that stands for it, plus their difference when it went.

    A model that takes images of other sizes (timm's `dynamic_img_size`, transformers'
    `interpolate_pos_encoding`) keeps to its budget there: the schedule is solved anew for every
    size that it meets. A schedule without a budget is refused at any size but the model's own.

    It is for one thread. For several schedules at once, in threads too, see `pruned`.

    >>> import timm, torch
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> model = prune_(model, cost=0.7)
    >>> model(torch.zeros(1, 3, 160, 160)).shape
    torch.Size([1, 5])
    """
    if schedule is None:
        schedule = schedule_for(
            model, cost=cost, gmacs=gmacs, speedup=speedup, example=example, method=method,
            tuned=tuned, outputs=outputs,
        )  # fmt: skip
    elif not isinstance(schedule, Schedule):
        meant = f"Schedule.load({schedule!r})" if isinstance(schedule, str) else f"cost={schedule}"
        raise TypeError(
            f"prune_ takes a Schedule, got {type(schedule).__name__}: is {meant} meant?"
        )
    elif cost is not None or gmacs is not None or speedup is not None or tuned:
        raise ValueError("give prune_ a schedule or a budget, not both")
    elif method is not None:
        raise ValueError("a schedule knows its method: use schedule.by(method) for another")
    _check_compute(compute)
    schedule = fit(schedule, backbone(model).geometry, outputs)
    return attach(model, schedule, compute, backend, outputs, solve_at)


def pruned(
    model: Model,
    schedule: Schedule | None = None,
    *,
    cost: float | None = None,
    gmacs: float | None = None,
    speedup: float | None = None,
    example: Tensor | None = None,
    method: Method | str | None = None,
    tuned: bool = False,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
) -> Model:
    """A pruned copy of the model that shares its weights: it takes next to no memory of its own.

    For several costs at once, in threads too: each copy has its own schedule, and the model itself
    stays as it is. `prune_` changes a model in place, and is for one thread: a call that another
    thread is in the middle of would run by two schedules. The arguments are those of `prune_`.

    Weights are shared as they lie: have the model on its device and in its precision first.
    Training one of them trains all.

    >>> import timm, torch
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> quick, quicker = pruned(model, cost=0.8), pruned(model, cost=0.6)
    >>> quick.head.weight is quicker.head.weight is model.head.weight
    True
    >>> "pruned by" in repr(quick), "pruned by" in repr(model)
    (True, False)
    """
    return prune_(sharing_copy(model), schedule, cost=cost, gmacs=gmacs, speedup=speedup,
                  example=example, method=method, tuned=tuned, compute=compute, backend=backend,
                  outputs=outputs)  # fmt: skip


def gmacs(
    model: nn.Module,
    schedule: Schedule | None = None,
    convention: Convention = "full",
    *,
    compute: Compute = "all",
    outputs: Outputs = "tokens",
) -> float:
    """Multiply-accumulates for one image, in units of 10⁹.

    Of the model as it is, or as the schedule would make it. The convention "full" counts all matrix
    products with the patch embedding; "paper" is the paper's, which leaves that out and counts the
    norms. Both count each block for all tokens that enter it, as the paper and every other method
    do; with compute="needed", only what `prune_` computes by default. With a schedule, `outputs` is
    what `prune_` would be given; a pruned model knows its own.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> f"{gmacs(model):.3f}, {gmacs(prune_(model, cost=0.6)):.3f}"
    '1.254, 0.752'
    """
    _check_compute(compute)
    if schedule is None:
        held = current_plan(model)
        geometry = backbone(model).geometry
        plan = (
            Plan(Schedule(), geometry)
            if held is None
            else Plan(held.schedule, geometry, held.outputs)
        )
    else:
        geometry = backbone(model).geometry
        plan = Plan(fit(schedule, geometry, outputs), geometry, outputs)
        plan.check()
    return plan.gmacs(convention, compute=compute)


def _check_compute(compute: str) -> None:
    if compute not in get_args(Compute):
        raise ValueError(f'compute must be "needed" or "all", got {compute!r}')
