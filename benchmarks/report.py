"""Write docs/results.md and its plots from results.csv: what agrees with the paper and what not.

Two tables of other pages are read off the same rows: in measuring.md and searching.md.

Command: python -m benchmarks.report
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.claims import (
    Row,
    errors_from_zero,
    is_claim,
    models_of,
    newest,
    signed,
    verdict,
)
from benchmarks.figures import curve, sensitivity
from benchmarks.inputs import DOCS, RESULTS, parser
from benchmarks.inserts import refresh
from benchmarks.search import searched, settings
from benchmarks.speed import throughput
from benchmarks.summary import first_lines
from benchmarks.tables import (
    depth_adaptive,
    gap,
    large,
    off_the_shelf,
    published,
    scaling,
    transfer_report,
)
from benchmarks.tables.listing import TABLES
from benchmarks.tables.printed import QUOTED, TABLE_2_FASTER, Printed, Quoted
from benchmarks.tables.table import Table, about
from zerotprune.measure.speed import UNPRUNED
from zerotprune.plots.figure_files import save
from zerotprune.plots.trade_off import Point, find_named, trade_off_figure

SEARCHED = Table("searched", about(searched.__doc__), lambda model, some: [])
#: every table that has a section of its own kind
BY_NAME = {table.name: table
           for table in (*TABLES, settings.TABLE, SEARCHED,
                         *(entry.table for entry in large.MODELS))}  # fmt: skip
#: the order of the page
ORDER = ("contribution", settings.TABLE.name, settings.SETTINGS, "features", "partition", "metric",
         "attention, S-stage on", "attention", "order", published.TABLE.name, throughput.NAME,
         gap.TABLE.name, off_the_shelf.TABLE.name, scaling.TABLE.name, depth_adaptive.TABLE.name,
         "searched", "fold", "tome-r", "dinov2",
         *(entry.table.name for entry in large.MODELS[1:]))  # fmt: skip

HEAD = """# Results

What of the paper holds on two tiny models, what does not, and what these images cannot tell:
"""
HOW = """
## How to read it

Made by `python -m benchmarks.report` from `benchmarks/results.csv`, where each row has its command,
commit, versions, hardware and seed. One command makes the rows, this page and its plots again:
`python -m benchmarks.all --shared DIR`; with `--weights DIR --data IMAGENET/val` also the tables
that are only quoted here.

Top-1 on 2,000 ImageNet validation images (two of each class, `report`); where nothing that was
chosen on the 1,000 images of `tune` takes part, on all 3,000. Float32, change against the unpruned
model in points with its paired standard error, and the divergence of the answers from the
unpruned model's (KL, in nats). GMACs count all matrix products with patch embedding, and the
scoring; "needed" is what is left once the last block runs for CLS alone and what is dropped skips
its MLP. The paper's count for DeiT-S leaves the embedding out (4.55, with it 4.61); its 1.26 for
DeiT-T is with it. The copy of DeiT-Ti has LayerNorm parameters that whoever published it rounded
to 1/64. DINOv2-S: 10 nearest neighbours (cosine, votes weighted by exp(cosine / 0.07)) on 555
Oxford pets at 224 px. Where a table of ours answers one of the paper's, the paper's cells stand
beside: its model is another and larger one, on all 50,000 images, so the order of the variants can
be compared, not their level. A claim *agrees* or *disagrees* when the paired difference is more
than two standard errors from zero; else the images do not tell. With so many claims some would
pass that line by chance alone. `zero-tprune` is the method in [our form of
schedule](budgets.md#zero-tprunes-two-forms), `zero-tprune-paper` in the paper's; zero-tp-a, -b and
-c, which the paper gives by their cost alone, are our schedules for these costs.

These images were looked at before, while the code was finished. They showed that the paper's form
of schedule falls off at half of the cost, and our form was made for that; the choice itself was
made on `tune` alone, as that of the searched schedules was.
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the rows")
    options.add_argument("--docs", type=Path, default=DOCS, help="folder of the report")
    chosen = options.parse_args()
    write(chosen.csv, chosen.docs)


def write(path: Path, docs: Path) -> None:
    """The page and its plots, into a folder."""
    rows = [row for row in newest(path) if row["table"] in ORDER and _made(row)]
    parts = [HEAD, *first_lines(rows, _of_the_paper), HOW, _runs(rows), _counts(rows)]
    sections: dict[str, Callable[[list[Row], Path], list[str]]] = {
        settings.SETTINGS: _settings, throughput.NAME: _throughput, scaling.TABLE.name: _curve,
    }  # fmt: skip
    for name in dict.fromkeys(ORDER):
        found = [row for row in rows if row["table"] == name]
        if found:
            parts += sections[name](found, docs) if name in sections else _section(found, docs)
    if transferred := transfer_report.section(path, docs):
        parts.append(transferred)
    parts.append("## What only the paper has\n")
    parts.append("No weights of these models are at hand: quoted, and not measured here.\n")
    parts += [line for each in QUOTED for line in _quoted(each)]
    refresh(rows, docs)
    (docs / "results.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _made(row: Row) -> bool:
    """Is it a measurement, or a claim that its table still makes?"""
    table = BY_NAME.get(row["table"])
    if not is_claim(row) or table is None or table is SEARCHED:
        return True
    return any(claim.text == row["name"] for claim in table.claims)


def _of_the_paper(row: Row) -> bool:
    """Is it a claim of the paper, not one of ours?"""
    table = BY_NAME.get(row["table"])
    claims = () if table is None else table.claims
    return any(not each.ours for each in claims if each.text == row["name"])


def _runs(rows: Sequence[Row]) -> str:
    """Where the rows are from."""
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


def _counts(rows: Sequence[Row]) -> str:
    claims = [row for row in rows if is_claim(row) and _of_the_paper(row)]
    lines = ["## The paper's claims\n", "| table | agree | disagree | not told |",
             "|---|---|---|---|"]  # fmt: skip
    for table in dict.fromkeys(row["table"] for row in claims):
        found = [verdict(row) for row in claims if row["table"] == table]
        counts = (found.count(kind) for kind in ("agrees", "disagrees", "does not tell"))
        lines.append(f"| {table} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join([*lines, ""])


def _section(rows: list[Row], docs: Path) -> list[str]:
    table = BY_NAME[rows[0]["table"]]
    lines = [f"## {table.name}\n", table.about, ""]
    if table.printed:
        lines += [f"The paper's column: {table.printed.table}, {table.printed.conditions}.", ""]
    if table.quoted:
        lines += _quoted(table.quoted)
    for model in models_of(rows):
        own = [row for row in rows if row["model"] == model]
        lines += [f"### {model}\n", *_measured(own, table.printed), "", *_claims(own), ""]
        if "@" in own[1]["name"]:
            lines += _plot(table.name, model, own, docs)
    return lines


def _quoted(table: Quoted) -> list[str]:
    return [
        f"### The paper's {table.title}\n",
        f"{table.conditions}.",
        "",
        *_lines(table.header, table.rows),
        "",
        "Whoever has the weights and the images:\n",
        f"```\n{table.command}\n```\n",
    ]


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _measured(rows: Sequence[Row], printed: Printed | None) -> list[str]:
    """Features have no divergence: that column is then left out."""
    told = any(row["kl"] for row in rows)
    cells = []
    for row in rows:
        if is_claim(row):
            continue
        pruned, needed = bool(row["schedule"]), row["gmacs_needed"]
        line = [row["name"], f"{float(row['gmacs']):.3f}"]
        line.append(f"{float(needed):.3f}" if pruned and needed else "")
        line += [f"{float(row['top1']):.2f}", signed(row) if pruned else ""]
        if told:
            kl = row["kl"] and f"{float(row['kl']):.4f} ± {float(row['kl_error']):.4f}"
            line.append(kl if pruned else "")
        cells.append([*line, *([printed.cell(row["name"])] if printed else [])])
    header = ["", "GMACs", "needed", "accuracy %", "change", *["KL"][:told]]
    return _lines([*header, *(["paper: % (change) @ G"] if printed else [])], cells)


def _claims(rows: Sequence[Row]) -> list[str]:
    claims = [row for row in rows if is_claim(row)]
    if not claims:
        return []
    cells = [
        [row["name"], signed(row), f"{errors_from_zero(row):+.1f}", verdict(row),
         f"{signed(row, 'kl', 4)}: {verdict(row, 'kl')}" if row["kl"] else ""]
        for row in claims
    ]  # fmt: skip
    return _lines(("claim", "difference", "standard errors", "", "KL less by"), cells)


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


def _curve(rows: list[Row], docs: Path) -> list[str]:
    """The scaling question, in one figure for all models."""
    save(curve.drawn(rows), docs / "curve.png")
    lines = [f"## {scaling.TABLE.name}\n", scaling.TABLE.about, ""]
    lines += ["![Change in accuracy against cost, both models and methods](curve.png)", ""]
    for model in models_of(rows):
        own = [row for row in rows if row["model"] == model]
        lines += [f"### {model}\n", *_measured(own, None), ""]
    return lines


def _settings(rows: list[Row], docs: Path) -> list[str]:
    save(sensitivity.drawn(rows), docs / "sensitivity.png")
    lines = [f"## {settings.SETTINGS}\n", *sensitivity.told(rows), ""]
    return [*lines, "![Change in accuracy of 100 random settings, by rank](sensitivity.png)", ""]


def _throughput(rows: list[Row], docs: Path) -> list[str]:
    """Images/s in every precision and mode, and how many times as fast as unpruned there."""
    cases = list(dict.fromkeys((row["precision"], row["mode"]) for row in rows))
    found = {(row["name"], row["precision"], row["mode"]): row for row in rows}
    cells = []
    for name in dict.fromkeys(row["name"] for row in rows):
        gmacs = found[name, *cases[0]]["gmacs_paper"]
        line = [name, f"{float(gmacs):.2f}" if gmacs else ""]
        for case in cases:
            row = found.get((name, *case), {})
            own = row.get("images_per_second")
            unpruned = found[UNPRUNED, *case]["images_per_second"]
            faster = f"{float(own) / float(unpruned):.2f}×" if own and unpruned else ""
            line.append(f"{float(own):.0f} ({faster})" if own else row.get("failure", ""))
        paper = TABLE_2_FASTER.get(name)
        cells.append([*line, f"{paper:.2f}×" if paper else ""])
    header = ("", "GMACs as the paper counts", *(f"{precision}, {mode}"
              for precision, mode in cases), "paper, A100")  # fmt: skip
    return [f"## {throughput.NAME}\n", about(throughput.__doc__), "",
            f"Images/s on one {rows[0]['hardware']}, batch {rows[0]['batch']}.\n",
            *_lines(header, cells), ""]  # fmt: skip


if __name__ == "__main__":
    main()
