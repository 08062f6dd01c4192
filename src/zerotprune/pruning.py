"""Prune a model to a budget or by a schedule, restore it, and count its cost."""

from __future__ import annotations

from numbers import Real
from typing import TypeVar, get_args

from torch import Tensor, nn

from .backbones import backbone
from .budgets import fit, schedule_for, solve_at
from .cost import Compute, Convention
from .method import Method
from .plan import Plan
from .schedule import Schedule
from .scoring.scorer import Backend
from .surgery import attach, current_plan, restore_, sharing_copy
from .tokens import Outputs

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
    """Prune the tokens of a model in place, without training.

    Weights and their names stay as they are. Pruning again replaces the old schedule, `restore_`
    undoes it, and a call that fails changes nothing.

    Args:
        model: A Vision Transformer of timm, transformers, torchvision or open_clip.
        schedule: Stages and their method. Give either this or a budget. A schedule that was solved
            for a budget at another number of patches is solved again for this model.
        cost: The budget as a share of the unpruned model's compute.
        gmacs: The budget in GMACs.
        speedup: The budget as a speedup over the unpruned model, measured here on `example`.
            `repr(model)` says the GMACs that it came to; to have the cost, solve it first:
            `schedule = schedule_for(model, speedup=…, example=…)`, then `schedule.budget.cost`.
        example: A batch of images on the model's device, for `speedup`.
        method: A method or its name, for a budget. Default: Fold.
        tuned: Use the schedule that was searched for this model and budget.
        compute: "needed" skips what the head does not read: dropped tokens skip the MLP of their
            block, and if the head reads the prefix tokens alone, so does the last block compute
            them alone. The logits are the same up to rounding. `forward_features` and hooks in the
            last block still get all tokens. "all" computes everything.
        backend: What computes the scores: "reference" (torch), "triton" (kernels for GPUs), or
            "auto", which takes the kernels wherever they run and give the same result.
        outputs: "tokens" returns the tokens that are left. "grid" returns a vector for every patch,
            in the order of the grid, as the unpruned model does: for dense heads,
            `forward_intermediates` and hooks on blocks. A removed patch gets the vectors of its
            stand-ins, plus its difference from them when it was removed.

    A model that takes images of other sizes (timm's `dynamic_img_size`, transformers'
    `interpolate_pos_encoding`) keeps its budget: the schedule is solved again for every size that
    it meets. A schedule without a budget is refused at any other size.

    Not thread-safe. To use several schedules at once, in threads too, see `pruned`.

    >>> import timm, torch
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> model = prune_(model, cost=0.7)
    >>> model(torch.zeros(1, 3, 160, 160)).shape
    torch.Size([1, 5])
    """
    _check_compute(compute)
    _check_schedule(schedule)
    if schedule is None:
        schedule = schedule_for(
            model, cost=cost, gmacs=gmacs, speedup=speedup, example=example, method=method,
            tuned=tuned, outputs=outputs,
        )  # fmt: skip
    elif cost is not None or gmacs is not None or speedup is not None or tuned:
        raise ValueError("give a schedule or a budget, not both")
    elif method is not None:
        raise ValueError("a schedule has a method: use schedule.by(method) for another one")
    else:
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
    """Return a pruned copy of the model that shares its weights, and so takes little memory.

    Each copy has its own schedule, and the model stays as it is: for several costs at once, in
    threads too. (`prune_` changes a model in place, even while another thread is calling it.)

    Move the model to its device and precision first: a copy shares the weights as they are.
    Training one trains all.

    Args:
        model: As for `prune_`, like all other arguments.

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
    """Count the multiply-accumulates for one image, in units of 10⁹.

    Args:
        model: A pruned or unpruned model.
        schedule: Count the model as pruned by this schedule; default: the model as it is.
        convention: "full" counts all matrix products and the patch embedding; "paper" counts as the
            paper does, norms but no patch embedding.
        compute: "all" counts each block for all tokens that enter it, as the paper and other
            methods do; "needed" counts only what `prune_` computes by default.
        outputs: As for `prune_`, with a schedule.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> f"{gmacs(model):.3f}, {gmacs(prune_(model, cost=0.6)):.3f}"
    '1.254, 0.752'
    """
    _check_compute(compute)
    _check_schedule(schedule)
    geometry, current = backbone(model).geometry, current_plan(model)
    if schedule is not None:
        plan = Plan(fit(schedule, geometry, outputs), geometry, outputs)
        plan.check()
    elif current is not None:
        plan = Plan(current.schedule, geometry, current.outputs)
    else:
        plan = Plan(Schedule(), geometry)
    return plan.gmacs(convention, compute=compute)


def _check_schedule(schedule: object) -> None:
    if schedule is None or isinstance(schedule, Schedule):
        return
    hint = ""
    if isinstance(schedule, str):
        hint = f": did you mean Schedule.load({schedule!r})?"
    elif isinstance(schedule, Real):
        hint = f": did you mean cost={schedule}?"
    raise TypeError(f"schedule must be a Schedule, got {type(schedule).__name__}{hint}")


def _check_compute(compute: str) -> None:
    if compute not in get_args(Compute):
        raise ValueError(f'compute must be "needed" or "all", got {compute!r}')
