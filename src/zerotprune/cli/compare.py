"""`zerotprune compare`: all methods at several budgets, on the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure

from ..budgets.contenders import METHODS, Contender, contender
from ..measure import records
from ..measure.accuracy import Result, paired_difference
from ..plots.figures import Point, check_target, save, trade_off_figure
from ..pruning import gmacs as unpruned_gmacs
from .evaluate import table
from .session import Session, Source, start


def compare(
    source: Source,
    *,
    keep: list[float] | None = None,
    method: list[str] | None = None,
    csv: Path | None = None,
    plots: Path | None = None,
) -> None:
    """All methods at several budgets, matched within 1 %: a table, a CSV, and two plots.

    Parameters
    ----------
    keep
        Budgets, as shares of the unpruned cost; default 0.85, 0.7 and 0.55.
    method
        Which methods; default all.
    csv
        Append the rows to this file.
    plots
        Folder for `accuracy-gmacs.png` and `accuracy-speed.png`.
    """
    if csv is not None:
        records.check_target(csv)
    if plots is not None:
        check_target(plots / "accuracy-gmacs.png")
    session = start(source)
    contenders = _contenders(session, keep or [0.85, 0.7, 0.55], method or list(METHODS))
    results = session.run(contenders)
    if not session.leads:
        return
    session.console.print(table(session, results))
    for line in _against_tome(results):
        session.console.print(line, highlight=False)
    if csv is not None:
        records.append(csv, [session.row(result, results[0]) for result in results])
    if plots is not None:
        for by in get_args(Axis):
            save(_plot(results, by, session.source.model), plots / f"accuracy-{by}.png")


Axis = Literal["gmacs", "speed"]


def _plot(results: list[Result], by: Axis, model: str) -> Figure:
    def place(result: Result) -> float:
        return result.gmacs() if by == "gmacs" else result.images_per_second

    points = [
        Point(result.contender.name, place(result), *result.change(results[0]))
        for result in results[1:]
    ]
    title = f"{model}, {len(results[0].hits)} pictures"
    return trade_off_figure(points, place(results[0]), by, title)


def _contenders(session: Session, budgets: list[float], methods: list[str]) -> list[Contender]:
    found, full = [Contender("unpruned")], unpruned_gmacs(session.model)
    for share in budgets:
        if not 0 < share < 1:
            raise ValueError(f"a budget must be a share between 0 and 1, got {share}")
        for name in methods:
            images = session.some_images() if name == "ats" else None
            try:
                found.append(contender(name, session.model, share * full, images))
            except ValueError as error:
                session.console.print(f"left out: {error}", style="yellow")
    if len(found) == 1:
        raise ValueError("none of the methods can meet any of the budgets")
    return found


def _against_tome(results: list[Result]) -> list[str]:
    """A paired test of Zero-TPrune against ToMe at each budget: difference, error, and its z."""
    lines = []
    by_name = {"zero-tprune": list[Result](), "tome": list[Result]()}
    for result in results:
        by_name.get(result.contender.name, []).append(result)
    for ours, theirs in zip(by_name["zero-tprune"], by_name["tome"], strict=False):
        pairs = zip(ours.hits, theirs.hits, strict=True)
        mean, error = paired_difference([int(own) - int(other) for own, other in pairs])
        z = mean / error if error else 0.0
        lines.append(
            f"Zero-TPrune − ToMe at {ours.gmacs():.3f} and {theirs.gmacs():.3f} GMACs: "
            f"{mean:+.2f} ± {error:.2f} points (z = {z:+.1f})"
        )
    return lines
