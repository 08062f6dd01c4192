"""Sections of docs/results-appendix.md, each from the rows of one table, with their plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, cast

from benchmarks.claims import Row, errors_from_zero, is_claim, models_of, signed, verdict
from benchmarks.figures import curve, sensitivity
from benchmarks.search import settings
from benchmarks.speed import throughput
from benchmarks.tables import scaling
from benchmarks.tables.printed import TABLE_2_FASTER, Printed, Quoted
from benchmarks.tables.table import Table, about
from zerotprune.measure.accuracy import UNPRUNED
from zerotprune.plots.comparison import Point, find_named, trade_off_figure
from zerotprune.plots.figures import save

SHELF = "off-the-shelf"


def usual(table: Table, rows: Sequence[Row], docs: Path, speeds: Sequence[Row] = ()) -> list[str]:
    """Say what the table is about; for each model give its rows, its claims and its plot."""
    lines = [f"## {table.name}\n", table.about, ""]
    if table.anywhere:
        lines += ["On any other classifier:\n", f"```sh\n{table.anywhere}\n```\n"]
    if table.printed:
        lines += [f"The paper's column: {table.printed.table}, {table.printed.conditions}.", ""]
    if table.quoted:
        lines += quoted(table.quoted)
    papers = {claim.text for claim in table.claims if not claim.ours}
    for model in models_of(rows):
        of_model = _by_cost([row for row in rows if row["model"] == model])
        timed = [row for row in speeds if row["model"] == model]
        lines += [*_headed(model, of_model), *_measured(of_model, table.printed, timed), ""]
        lines += _timed(timed)
        lines += [*_claims(of_model, papers), ""]
        if "@" in of_model[1]["name"]:
            lines += _plot(table.name, model, of_model, docs)
    return lines


def _by_cost(rows: Sequence[Row]) -> list[Row]:
    """Put the unpruned model first, whichever run it is of, then what costs as much together."""

    def key(row: Row) -> tuple[bool, float]:
        _, at, cost = row["name"].partition(" @ ")
        return row["name"] != UNPRUNED.name, -float(cost) if at else 0.0

    return sorted(rows, key=key)


def quoted(table: Quoted) -> list[str]:
    """List a table of the paper and the command that would measure it."""
    return [
        f"### The paper's {table.title}\n",
        f"{table.conditions}.",
        "",
        *_lines(table.header, table.rows),
        "",
        "To measure it, given the weights and the images:\n",
        f"```sh\n{table.command}\n```\n",
    ]


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _headed(model: str, rows: Sequence[Row]) -> list[str]:
    return [f"### {model}\n", f"{int(rows[0]['images']):,} images.\n"]


def _measured(
    rows: Sequence[Row], printed: Printed | None, speeds: Sequence[Row] = ()
) -> list[str]:
    """List the measured rows; features have no divergence, so no such column."""
    has_kl = any(row["kl"] for row in rows)
    ways = dict.fromkeys((row["precision"], row["mode"]) for row in speeds)
    rates = {(row["name"], row["precision"], row["mode"]): float(row["images_per_second"])
             for row in speeds if row["images_per_second"]}  # fmt: skip
    faster = printed is not None and bool(printed.rates)
    cells = []
    for row in rows:
        if is_claim(row):
            continue
        pruned, needed = bool(row["schedule"]), row["gmacs_needed"]
        line = [row["name"], f"{float(row['gmacs']):.3f}"]
        line.append(f"{float(needed):.3f}" if pruned and needed else "")
        line += [f"{float(row['top1']):.2f}", signed(row) if pruned else ""]
        if has_kl:
            kl = row["kl"] and f"{float(row['kl']):.4f} ± {float(row['kl_error']):.4f}"
            line.append(kl if pruned else "")
        line += [_rate(rates, row["name"], way) for way in ways]
        if printed:
            line += [printed.cell(row["name"]), *([printed.rate(row["name"])] if faster else [])]
        cells.append(line)
    header = ["", "GMACs", "needed", "accuracy %", "change", *["KL"][:has_kl]]
    header += [f"images/s, {', '.join(way)}" for way in ways]
    papers = ["paper: % (change) @ G", *["paper: images/s, A100"][:faster]] if printed else []
    return _lines([*header, *papers], cells)


def _rate(rates: dict[tuple[str, str, str], float], name: str, way: tuple[str, str]) -> str:
    rate, unpruned = rates.get((name, *way)), rates.get((UNPRUNED.name, *way))
    if rate is None:
        return ""
    faster = f" ({rate / unpruned:.2f}×)" if unpruned and name != UNPRUNED.name else ""
    return f"{rate:.0f}{faster}"


def _timed(rows: Sequence[Row]) -> list[str]:
    """Say where the images/s come from."""
    if not rows:
        return []
    one = rows[0]
    return [f"Images/s of noise on one {one['hardware']}, batch {one['batch']}: "
            f"`{one['command']}`, commit {one['commit'] or 'unknown'}.\n"]  # fmt: skip


def _claims(rows: Sequence[Row], papers: Collection[str]) -> list[str]:
    """List the paired differences; the paper can only agree or disagree with its own claims."""
    claims = [row for row in rows if is_claim(row)]
    if not claims:
        return []
    cells = [
        [row["name"], signed(row), f"{errors_from_zero(row):+.1f}", _verdict(row, papers),
         f"{signed(row, 'kl', 4)}: {_verdict(row, papers, 'kl')}" if row["kl"] else ""]
        for row in claims
    ]  # fmt: skip
    return _lines(("claim", "difference", "standard errors", "verdict", "KL less by"), cells)


def _verdict(row: Row, papers: Collection[str], value: str = "change") -> str:
    judged = verdict(row, value)
    if row["name"] in papers:
        return judged
    return {"agrees": "yes", "disagrees": "no"}.get(judged, judged)


def _plot(table: str, model: str, rows: Sequence[Row], docs: Path) -> list[str]:
    """Plot accuracy against GMACs; off the shelf also against the speed on the machine of most rows
    (Fig. 19)."""
    unpruned, *measured = [row for row in rows if not is_claim(row)]
    title, lines = f"{model}, {unpruned['images']} images", []
    for by, column, unit in (("gmacs", "gmacs", "GMACs"),
                             ("speed", "images_per_second", "images/s")):  # fmt: skip
        fast = by == "speed"
        shown = [row for row in measured if not fast or row["hardware"] == unpruned["hardware"]]
        if fast and (table != SHELF or not all(row[column] for row in (unpruned, *shown))):
            continue
        one = float(unpruned[column]) if fast else 1.0  # the axis has times the unpruned speed
        points = [
            Point(row["name"].partition(" @")[0], float(row[column]) / one, float(row["change"]),
                  float(row["change_error"]))
            for row in shown
        ]  # fmt: skip
        file = Path(f"{table}-{model.partition('_patch')[0]}-{by}.png")
        axis = cast(Literal["gmacs", "speed"], by)
        run = f"; {unpruned['hardware']}, float32, eager" if fast else ""
        figure = trade_off_figure(points, float(unpruned[column]) / one, axis, title + run,
                                  find_named(points, axis))  # fmt: skip
        save(figure, docs / file)
        lines += [f"![{table} on {model}: accuracy against {unit}]({file})", ""]
    return lines


def curved(rows: list[Row], docs: Path) -> list[str]:
    """Plot how far models can be pruned, in one figure for all of them."""
    save(curve.drawn(rows), docs / "curve.png")
    lines = [f"## {scaling.TABLE.name}\n", scaling.TABLE.about, ""]
    lines += ["![Change in accuracy against cost, both models and methods](curve.png)", ""]
    for model in models_of(rows):
        of_model = [row for row in rows if row["model"] == model]
        lines += [*_headed(model, of_model), *_measured(of_model, None), ""]
    return lines


def sensitive(rows: list[Row], docs: Path) -> list[str]:
    """Show how much depends on the schedule, as a figure and in numbers."""
    save(sensitivity.drawn(rows), docs / "sensitivity.png")
    lines = [f"## {settings.SETTINGS}\n", *sensitivity.described(rows), ""]
    return [*lines, "![Change in accuracy of 100 random settings, by rank](sensitivity.png)", ""]


def fast(rows: list[Row], docs: Path) -> list[str]:
    """List images/s in every precision and mode, and the speedup over the unpruned model there."""
    cases = list(dict.fromkeys((row["precision"], row["mode"]) for row in rows))
    by_case = {(row["name"], row["precision"], row["mode"]): row for row in rows}
    cells = []
    for name in dict.fromkeys(row["name"] for row in rows):
        gmacs = by_case[(name, *cases[0])]["gmacs_paper"]
        line = [name, f"{float(gmacs):.2f}" if gmacs else ""]
        for case in cases:
            row = by_case.get((name, *case), {})
            rate = row.get("images_per_second")
            unpruned = by_case[(UNPRUNED.name, *case)]["images_per_second"]
            faster = f"{float(rate) / float(unpruned):.2f}×" if rate and unpruned else ""
            line.append(f"{float(rate):.0f} ({faster})" if rate else row.get("failure", ""))
        paper = TABLE_2_FASTER.get(name)
        cells.append([*line, f"{paper:.2f}×" if paper else ""])
    header = ("", "GMACs as the paper counts", *(f"{precision}, {mode}"
              for precision, mode in cases), "paper, A100")  # fmt: skip
    return [f"## {throughput.NAME}\n", about(throughput.__doc__), "",
            f"Images/s on one {rows[0]['hardware']}, batch {rows[0]['batch']}.\n",
            *_lines(header, cells), ""]  # fmt: skip


def runs(rows: Sequence[Row]) -> str:
    """Say which runs the rows come from."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        tables = runs.setdefault((row["command"], row["commit"], row["hardware"]), [])
        if row["table"] not in tables:
            tables.append(row["table"])
    if len(runs) == 1:
        ((command, commit, hardware),) = runs
        return f"All rows are from one run of `{command}` at commit {commit} on one {hardware}.\n"
    lines = [f"- {', '.join(tables)}: `{command}`, commit {commit or 'unknown'}, {hardware}"
             for (command, commit, hardware), tables in runs.items()]  # fmt: skip
    return "\n".join(["The rows are from these runs:\n", *lines, ""])
