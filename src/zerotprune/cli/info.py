"""`zerotprune info`: a model's geometry and its cost by block, with and without a schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from ..backbones import backbone
from ..budgets.speed import cost_for
from ..budgets.tuned import tuned_at
from ..calibrate.calibration import Calibration
from ..cost import Load, block_macs
from ..data.models import DEMO, load, resize_, saved_with
from ..export import target_of
from ..export.target import Target
from ..measure.speed import noise
from ..methods import name_of, names, resolve
from ..plan import Plan
from ..safety.files import printable
from ..schedule import Schedule, Stage
from ..scoring.scorer import used_on
from ..tokens import Outputs
from .console import console_for, print_table
from .options import (
    BatchCount,
    BudgetOptions,
    BudgetsOptions,
    CalibrationFile,
    MethodName,
    ModelName,
    ModelOptions,
    describe_cost,
    resolve_device,
)


def info(
    model: ModelName,
    *,
    budget: BudgetsOptions = BudgetsOptions(),
    method: MethodName | None = None,
    calibration: CalibrationFile = None,
    batch: BatchCount | None = None,
    loading: ModelOptions = ModelOptions(),
) -> None:
    """Print a model's geometry and its cost by block, and what a budget makes of them.

    Several costs get a table each. Of a file that `zerotprune export` wrote, print what it says of
    itself.

    Example: `zerotprune info deit_small_patch16_224 --cost 0.7 0.5 --method tome`

    Parameters
    ----------
    batch
        Images at a time, to measure --speedup or --latency-ms; default 8.
    """
    console = console_for()
    if (exported := target_of(model)) is not None:
        given = (budget, method, calibration, batch, loading)
        if given != (BudgetsOptions(), None, None, None, ModelOptions()):
            raise ValueError(
                f"{model} is an exported file, which has no options: give the file alone"
            )
        _print_file(console, Path(model), exported)
        return
    budgets = budget.split(method, model)
    if batch is not None and budgets[0].time is None:
        raise ValueError("--batch is for measuring: give --speedup or --latency-ms, too")
    chosen = None if method is None else resolve(method)
    if chosen is not None and chosen.adaptive and budgets[0].schedule is None:
        raise ValueError(f"the cost of {method} depends on the images: use `zerotprune evaluate`")
    device = torch.device(resolve_device(loading.device))
    # Weights are read if they are local: their shapes count, and a calibration is for them.
    if loading.weights is not None or (calibration is not None and model == DEMO):
        built = loading.load(model)
    else:
        built = loading.outline(model)
        if loading.size is not None:
            resize_(built, loading.size)
    if budgets[0].time is not None:  # then there is one
        budgets = [_measure_cost(model, budgets[0], method, batch or 8, loading, device, console)]
    solved = [one.solve(built, method, torch.Tensor, lambda line: None) for one in budgets]
    schedules = [schedule for schedule in solved if schedule is not None]
    calibrated = None
    if calibration is not None:
        calibrated = Calibration.load_for(calibration, model, built)
        schedules = calibrated.applied_to(schedules)
    geometry = backbone(built).geometry
    full = Plan(Schedule(), geometry)
    saved = None if budgets[0].options else saved_with(built, method)
    outputs: Outputs = "tokens" if saved is None else saved.outputs
    plans = [Plan(schedule, geometry, outputs) for schedule in schedules] or [full]
    for plan in plans:
        plan.check()
    _print_model(console, model, built, full)
    for plan in plans:
        print_table(console, _blocks_table(full, plan))
        if plan is not full:
            _print_pruned(console, full, plan, device)
    if calibrated is not None:
        low, high = calibrated.vhf
        console.print(f"  VHF: heads with a variance from {low:g} to {high:g}")
        if loading.weights is None and model != DEMO:
            console.print("  the calibration's weights were not compared with the model's: give "
                          "--weights")  # fmt: skip
    if plans == [full]:
        console.print(f"  methods: {', '.join(names())}")


def _print_file(console: Console, path: Path, exported: Target) -> None:
    """Print what an exported file says of itself, with three of its classes."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    facts = exported.read(path)
    console.print(printable(str(path)), style="bold")
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name == "class_names":
            some = ", ".join(value[:3]) + (", …" if len(value) > 3 else "")
            text = f"{len(value)}: {some}" if value else "none"
        line = printable(f"{name:<15}{text}")  # the file is not trusted
        console.print(f"  {line}", soft_wrap=True)


def _measure_cost(
    model: str,
    budget: BudgetOptions,
    method: str | None,
    batch: int,
    loading: ModelOptions,
    device: torch.device,
    console: Console,
) -> BudgetOptions:
    """Return the cost that meets a time budget. Random weights are as fast as any."""
    real = load(**loading.load_kwargs(model) | {"pretrained": False}).to(device)
    assert budget.time is not None
    with console.status("measuring how fast pruned models are here"):
        images = noise(real, batch, str(device), torch.float32)
        cost, timed = cost_for(real, budget.time, images, method)
    console.print(Text.assemble((describe_cost(cost, timed), "bold"), f", batch {batch}, {device}"))
    return replace(budget, cost=cost, speedup=None, latency_ms=None)


def _print_model(console: Console, model: str, built: nn.Module, full: Plan) -> None:
    geometry = full.geometry
    first, rows = geometry.blocks[0], geometry.grid
    console.print(Text.assemble((printable(model), "bold"), f" ({type(built).__name__})"))
    start = "CLS" if geometry.cls else "uniform: the model has no CLS token"
    unpruned = full.gmacs()
    facts = [
        ("patches", f"{rows[0]} × {rows[1]} = {geometry.patches}"),
        ("prefix tokens", f"{geometry.prefix}"),
        ("votes start from", start),
        ("blocks", f"{geometry.depth}, width {geometry.dim}, {first.heads} heads"),
        ("GMACs", f"{unpruned:.3f} with the patch embedding"),
        ("", f"{full.gmacs('paper'):.3f} in the paper's convention (norms, no patch embedding)"),
    ]
    searched = [
        f"{tuned.gmacs:g} GMACs (cost {tuned.gmacs / unpruned:.2f}, "
        f"{name_of(tuned.schedule.method)})"
        for tuned in tuned_at(built)
    ]
    if searched:
        facts.append(("searched (--tuned)", "; ".join(searched)))
    for name, value in facts:
        console.print(f"  {name:<19}{value}")


def _print_pruned(console: Console, full: Plan, plan: Plan, device: torch.device) -> None:
    whole, needed = plan.gmacs(), plan.gmacs(compute="needed")
    console.print(
        f"  pruned by {name_of(plan.method)}: {whole:.3f} GMACs, {whole / full.gmacs():.1%} of the "
        f"unpruned; {plan.gmacs('paper'):.3f} in the paper's convention",
    )
    if not plan.stages:
        return
    where = "dropped tokens' MLPs, and the last block's patch tokens"
    if not plan.prefix_only:
        where = "dropped tokens' MLPs; the last block is whole: its patch tokens are read"
    console.print(
        f"  never computed: {whole - needed:.3f} of them ({1 - needed / whole:.1%}), with the same "
        f"logits: {where}",
    )
    console.print(f"  scores by: {used_on(device)} (on {device.type})")


def _blocks_table(full: Plan, plan: Plan) -> Table:
    table = Table("block", box=None, pad_edge=True, header_style="bold")
    pruned = plan is not full
    for column in ("tokens", "GMACs") + (("stage", "tokens", "GMACs", "of it scoring") * pruned):
        table.add_column(column, justify="left" if column == "stage" else "right")
    before, after = full.loads()[0], plan.loads()[0]
    for index, shape in enumerate(full.geometry.blocks):
        row = [str(index + 1), *_load_cells(before[index], block_macs(shape, before[index]))]
        if pruned:
            row.append(_stage(plan.stages.get(index + 1), plan.geometry.depth))
            row += _load_cells(after[index], block_macs(shape, after[index]))
            row.append(f"{after[index].method / 1e9:.4f}" if after[index].method else "")
        table.add_row(*row)
    return table


def _load_cells(load: Load, macs: int) -> list[str]:
    return [str(load.attention), f"{macs / 1e9:.4f}"]


def _stage(stage: Stage | None, depth: int) -> str:
    if stage is None:
        return ""
    parts = [f"−{stage.similar} similar"] if stage.similar else []
    if stage.keep < 1:
        rounds = stage.votes(depth)
        parts.append(f"keep {stage.keep:g} ({rounds} round{'s' * (rounds > 1)})")
    return ", ".join(parts)
