"""Sections of docs/results-appendix.md, each from the rows of one table, with their plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.claims import Row, errors_from_zero, is_claim, models_of, signed, verdict
from benchmarks.figures import curve, sensitivity
from benchmarks.search import settings
from benchmarks.speed import throughput
from benchmarks.tables import scaling
from benchmarks.tables.printed import TABLE_2_FASTER, Printed, Quoted
from benchmarks.tables.table import Table, about
from zerotprune.measure.speed import UNPRUNED
from zerotprune.plots.comparison import Point, find_named, trade_off_figure
from zerotprune.plots.figures import save


def usual(table: Table, rows: Sequence[Row], docs: Path) -> list[str]:
    """Say what the table is about; for each model give its rows, its claims and its plot."""
    lines = [f"## {table.name}\n", table.about, ""]
    if table.printed:
        lines += [f"The paper's column: {table.printed.table}, {table.printed.conditions}.", ""]
    if table.quoted:
        lines += quoted(table.quoted)
    papers = {claim.text for claim in table.claims if not claim.ours}
    for model in models_of(rows):
        own = [row for row in rows if row["model"] == model]
        lines += [*_headed(model, own), *_measured(own, table.printed), ""]
        lines += [*_claims(own, papers), ""]
        if "@" in own[1]["name"]:
            lines += _plot(table.name, model, own, docs)
    return lines


def quoted(table: Quoted) -> list[str]:
    """A table of the paper, and the command that would measure it."""
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


def _measured(rows: Sequence[Row], printed: Printed | None) -> list[str]:
    """The measured rows; features have no divergence, so no such column."""
    has_kl = any(row["kl"] for row in rows)
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
        cells.append([*line, *([printed.cell(row["name"])] if printed else [])])
    header = ["", "GMACs", "needed", "accuracy %", "change", *["KL"][:has_kl]]
    return _lines([*header, *(["paper: % (change) @ G"] if printed else [])], cells)


def _claims(rows: Sequence[Row], papers: Collection[str]) -> list[str]:
    """The paired differences; the paper can agree or disagree with its own claims alone."""
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
    measured = [row for row in rows if not is_claim(row)]
    points = [
        Point(row["name"].partition(" @")[0], float(row["gmacs"]), float(row["change"]),
              float(row["change_error"]))
        for row in measured[1:]
    ]  # fmt: skip
    title = f"{model}, {measured[0]['images']} images"
    file = Path(f"{table}-{model.partition('_patch')[0]}-gmacs.png")
    named = find_named(points, "gmacs")
    figure = trade_off_figure(points, float(measured[0]["gmacs"]), "gmacs", title, named)
    save(figure, docs / file)
    return [f"![{table} on {model}: accuracy against GMACs]({file})", ""]


def curved(rows: list[Row], docs: Path) -> list[str]:
    """How far models can be pruned, in one figure for all of them."""
    save(curve.drawn(rows), docs / "curve.png")
    lines = [f"## {scaling.TABLE.name}\n", scaling.TABLE.about, ""]
    lines += ["![Change in accuracy against cost, both models and methods](curve.png)", ""]
    for model in models_of(rows):
        own = [row for row in rows if row["model"] == model]
        lines += [*_headed(model, own), *_measured(own, None), ""]
    return lines


def sensitive(rows: list[Row], docs: Path) -> list[str]:
    """How much depends on the schedule, as a figure and in numbers."""
    save(sensitivity.drawn(rows), docs / "sensitivity.png")
    lines = [f"## {settings.SETTINGS}\n", *sensitivity.described(rows), ""]
    return [*lines, "![Change in accuracy of 100 random settings, by rank](sensitivity.png)", ""]


def fast(rows: list[Row], docs: Path) -> list[str]:
    """Images/s in every precision and mode, and the speed-up over the unpruned model there."""
    cases = list(dict.fromkeys((row["precision"], row["mode"]) for row in rows))
    found = {(row["name"], row["precision"], row["mode"]): row for row in rows}
    cells = []
    for name in dict.fromkeys(row["name"] for row in rows):
        gmacs = found[(name, *cases[0])]["gmacs_paper"]
        line = [name, f"{float(gmacs):.2f}" if gmacs else ""]
        for case in cases:
            row = found.get((name, *case), {})
            own = row.get("images_per_second")
            unpruned = found[(UNPRUNED, *case)]["images_per_second"]
            faster = f"{float(own) / float(unpruned):.2f}×" if own and unpruned else ""
            line.append(f"{float(own):.0f} ({faster})" if own else row.get("failure", ""))
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
