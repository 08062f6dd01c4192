"""`zerotprune evaluate`: one model, one method, one schedule, on labelled pictures."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..budgets.contenders import Contender, contender, method_named
from ..measure import records
from ..measure.accuracy import Result
from ..pruning import gmacs as unpruned_gmacs
from .arguments import preset_or_file
from .session import Session, Source, start


def evaluate(
    source: Source,
    *,
    schedule: str | None = None,
    gmacs: float | None = None,
    keep: float | None = None,
    method: str = "zero-tprune",
    csv: Path | None = None,
    json: bool = False,
) -> None:
    """Accuracy, cost and speed of a pruned model, beside the unpruned one on the same pictures.

    Parameters
    ----------
    schedule
        A preset of the paper (ablation-is, zero-tp-a, …) or a JSON file.
    gmacs
        Set the method to this budget.
    keep
        Set the method to this share of the unpruned cost.
    method
        zero-tprune, zero-tprune-uni, tome, tome-uni, ats, evit, diffrate, cls-attention,
        average-attention, accumulated-attention, random or slicing.
    csv
        Append the rows to this file.
    json
        Print the rows as JSON, for scripts; all else goes to the error stream.
    """
    if csv is not None:
        records.check_target(csv)
    session = start(source, quiet=json)
    contenders = [Contender("unpruned")]
    chosen = _chosen(session, schedule, gmacs, keep, method)
    results = session.run([*contenders, *([] if chosen is None else [chosen])])
    if not session.leads:
        return
    rows = [session.row(result, results[0]) for result in results]
    if csv is not None:
        records.append(csv, rows)
    if json:
        print(jsonlib.dumps([{**records.surroundings(), **row} for row in rows], indent=2))
        return
    session.console.print(table(session, results))
    if session.unreadable:
        session.console.print(f"{len(session.unreadable)} pictures could not be read", style="red")


def _chosen(
    session: Session, schedule: str | None, gmacs: float | None, keep: float | None, method: str
) -> Contender | None:
    if sum(given is not None for given in (schedule, gmacs, keep)) > 1:
        raise ValueError("give one of --schedule, --gmacs and --keep, not several")
    named = method_named(method)
    if schedule is not None:
        return Contender(method, preset_or_file(schedule), named)
    if gmacs is None and keep is None:
        return None
    full = unpruned_gmacs(session.model)
    if keep is not None and not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    budget = gmacs if gmacs is not None else full * (keep or 1.0)
    images = session.some_images() if named.adaptive else None
    return contender(method, session.model, budget, images)


def table(session: Session, results: list[Result]) -> Table:
    """One row for each contender, changes against the first."""
    measure = session.source.probe or "top-1"
    title = f"{session.source.model}, {len(results[0].hits)} pictures"
    found = Table(title=title, header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    found.add_column("method", overflow="fold")  # what gives way on a narrow screen
    gpu = any(result.peak_memory for result in results)
    columns = ["GMACs", "paper's", f"{measure} %", "change", "top-5 %", "images/s", "×"]
    for column in columns + ["peak MiB"] * gpu:
        width = 14 if column == "change" else max(6, len(column))
        found.add_column(column, justify="right", no_wrap=True, min_width=width)
    reference = results[0]
    for number, result in enumerate(results):
        change, error = result.change(reference)
        faster = result.images_per_second / reference.images_per_second
        cells = [
            result.contender.name,
            f"{result.gmacs():.3f}",
            f"{result.gmacs('paper'):.3f}",
            f"{result.top1:.2f}",
            f"{change:+.2f} ± {error:.2f}" if number else "",
            f"{result.top5:.2f}",
            f"{result.images_per_second:.0f}",
            f"{faster:.2f}" if number else "",
        ]
        found.add_row(*cells, *([f"{result.peak_memory / 2**20:.0f}"] * gpu))
    return found
