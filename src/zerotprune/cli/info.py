"""`zerotprune info`: a model's geometry, its cost by block, and what a schedule makes of it."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ..backbones import backbone
from ..calibrate.calibration import Calibration
from ..cost import Load, block_macs
from ..data.models import outline
from ..methods import ZeroTPrune
from ..plan import Plan
from ..schedule import Schedule
from ..scoring.backends import used_on
from .arguments import read_schedule


def info(
    model: str,
    *,
    schedule: str | None = None,
    gmacs: float | None = None,
    keep: float | None = None,
    calibration: Path | None = None,
) -> None:
    """Print a model's geometry and its cost by block, and what a schedule makes of them.

    Parameters
    ----------
    model
        `demo` or the name of a timm model.
    schedule
        A preset of the paper (ablation-is, ablation-i, …) or a JSON file.
    gmacs
        Solve a schedule for this budget.
    keep
        Solve a schedule for this share of the unpruned cost.
    calibration
        Rounds for stages that leave them open, and the VHF range: what `calibrate` wrote.
    """
    built = outline(model)
    geometry = backbone(built).geometry
    chosen = read_schedule(built, schedule, gmacs, keep)
    found = None if calibration is None else Calibration.load_for(calibration, model, built)
    if chosen is not None and found is not None:
        chosen = found.schedule(chosen)
    full = Plan(Schedule(), ZeroTPrune(), geometry)
    plan = full if chosen is None else Plan(chosen, ZeroTPrune(), geometry)
    plan.check()
    console = Console()
    first, rows = geometry.blocks[0], geometry.grid
    console.print(f"[bold]{model}[/bold] ({type(built).__name__})")
    start = "CLS" if geometry.cls else "uniform: the model has no CLS token"
    for name, value in (
        ("patches", f"{rows[0]} × {rows[1]} = {geometry.patches}"),
        ("prefix tokens", f"{geometry.prefix}"),
        ("votes start from", start),
        ("blocks", f"{geometry.depth}, width {geometry.dim}, {first.heads} heads"),
        ("GMACs", f"{full.gmacs():.3f} with the patch embedding"),
        ("", f"{full.gmacs('paper'):.3f} in the paper's convention (norms, no patch embedding)"),
    ):
        console.print(f"  {name:<17}{value}", highlight=False)
    console.print(_table(full, plan))
    if plan is not full:
        share = plan.gmacs() / full.gmacs()
        console.print(
            f"  pruned: [bold]{plan.gmacs():.3f}[/bold] GMACs, {share:.1%} of the unpruned; "
            f"{plan.gmacs('paper'):.3f} in the paper's convention",
            highlight=False,
        )
    if found is not None:
        low, high = found.vhf
        console.print(f"  VHF: heads with a variance from {low:g} to {high:g}", highlight=False)
    if plan.stages:
        console.print(f"  never computed: {_saving(plan)}", highlight=False)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        console.print(f"  scores by: {used_on(device)} (on {device.type})", highlight=False)


def _saving(plan: Plan) -> str:
    """What nobody reads: see `prune_`."""
    whole, needed = plan.gmacs(), plan.gmacs(compute="needed")
    if plan.ends_early:
        where = "dropped tokens' MLPs, and the last block's patch tokens"
    else:
        where = "dropped tokens' MLPs; the last block is whole, the head reads the patch tokens"
    return f"{whole - needed:.3f} of them ({1 - needed / whole:.1%}), with the same logits: {where}"


def _table(full: Plan, plan: Plan) -> Table:
    table = Table("block", box=None, pad_edge=True, header_style="bold")
    pruned = plan is not full
    for column in ("tokens", "GMACs") + (("stage", "tokens", "GMACs", "of it scoring") * pruned):
        table.add_column(column, justify="left" if column == "stage" else "right")
    before, after = full.loads()[0], plan.loads()[0]
    for index, shape in enumerate(full.geometry.blocks):
        row = [str(index + 1), *_cells(before[index], block_macs(shape, before[index]))]
        if pruned:
            row.append(_stage(plan, index + 1))
            row += _cells(after[index], block_macs(shape, after[index]))
            row.append(f"{after[index].method / 1e9:.4f}" if after[index].method else "")
        table.add_row(*row)
    return table


def _cells(load: Load, macs: int) -> list[str]:
    return [str(load.attention), f"{macs / 1e9:.4f}"]


def _stage(plan: Plan, block: int) -> str:
    stage = plan.stages.get(block)
    if stage is None:
        return ""
    parts = [f"−{stage.similar} similar"] if stage.similar else []
    if stage.keep < 1:
        parts.append(f"keep {stage.keep:g} ({stage.votes(plan.geometry.depth)} rounds)")
    return ", ".join(parts)
