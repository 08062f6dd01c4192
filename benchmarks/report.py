"""Write docs/results.md and its plots from results.csv: what agrees with the paper and what not.

Command: python -m benchmarks.report
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from benchmarks.inputs import DOCS, RESULTS, parser
from benchmarks.search import searched
from benchmarks.tables import (
    ablations,
    contribution,
    dinov2,
    fold,
    off_the_shelf,
    order,
    scaling,
    tome_r,
    transfer_report,
)
from benchmarks.tables.printed import QUOTED, TABLE_2, Printed, Quoted
from benchmarks.tables.table import about
from zerotprune.plots.figure_files import save
from zerotprune.plots.trade_off import Point, find_named, trade_off_figure

TABLES = (contribution.TABLE, *ablations.TABLES, order.TABLE, off_the_shelf.TABLE, fold.TABLE,
          tome_r.TABLE, dinov2.TABLE, scaling.TABLE)  # fmt: skip
#: what each section opens with
ABOUT = {table.name: table.about for table in TABLES} | {"searched": about(searched.__doc__)}
BY_NAME = {table.name: table for table in TABLES}
Row = dict[str, str]

HEAD = """# Results

What of the paper holds on two tiny models, what does not, and what 2,000 images cannot tell:

- **Holds:** WPR beats random dropping, on both models; the S-stage helps, told on ViT-Ti alone.
- **Not told:** what EIR, VHF, the CLS start, the order of the stages, the features, the partition
  and the metric are worth. The paper's own differences there are 0.1 to 0.9 points, mostly below
  0.3; a paired difference here has an error of about 0.5.
- **Does not hold:** that Zero-TPrune is ahead of ToMe and ATS. At 0.85 and 0.70 of the cost ToMe
  is ahead on ViT-Ti, by 1.8 and 1.5 points, and DeiT-Ti does not tell; at 0.55 ToMe and ATS are
  ahead on both, by 6 to 9. The paper says that ToMe suffers on small models (Table 6, DeiT-T,
  last on seven sets): on these two it is the other way round.
- **The largest gap:** the paper loses 0.7 points at −45 % (DeiT-S); here the paper's form of
  schedule loses 12 at 0.55 of the cost, and searched schedules lose 5 to 6 points less than it.
- **Large models** at half of the cost: there the paper itself has ToMe ahead (Table 14).
- **Ours:** Fold diverges least from the unpruned model, at every cost and on both models.

Made by `python -m benchmarks.report` from `benchmarks/results.csv`, where each row has its command,
commit, versions, hardware and seed. One command makes the rows, this page and its plots again:
`python -m benchmarks.all --shared DIR`.

## How to read it

Top-1 on 2,000 ImageNet validation images (two of each class), float32, change against the
unpruned model in points with its paired standard error. GMACs count all matrix products with
patch embedding, and the scoring. The paper's count for DeiT-S leaves the embedding out (4.55,
with it 4.61); its 1.26 for DeiT-T is with it. The copy of DeiT-Ti has LayerNorm parameters that
whoever published it rounded to 1/64. DINOv2-S: 10 nearest neighbours (cosine, votes weighted by
exp(cosine / 0.07)) on 555 Oxford pets at 224 px. Where a table of ours answers one of the
paper's, the paper's cells stand beside: its model is another and larger one, on all 50,000
images, so the order of the variants can be compared, not their level. A claim *agrees* or
*disagrees* when the paired difference is more than two standard errors from zero; else the images
do not tell. With so many claims some would pass that line by chance alone. Speed is not in these
tables: see [when it pays](measuring.md#when-does-it-pay).

These images were looked at before: the tables ran three times while the code was finished. A run
showed that the default schedule falls off at half of the cost, and `schedule_for` was changed for
that (the choice itself was made on 600 other images). Table "searched" came later and ran three
times: twice with the winners of random searches, which at 0.9 G gained nothing, then with those
of TPE, found and chosen on `tune` alone. In the older GPU rows the command's paths, the commit
and timm's version were put in by hand: they ran on a copy without history, with timm 1.0.30
carried along. In the rows of "searched" the commit is the one that the run started from: the tree
moved on while it ran. Commands such as `python benchmarks/all.py` are from when the benchmarks
lay in one folder: `python -m benchmarks.all` now. The tables "off-the-shelf", "dinov2" and "fold"
ran again when Fold and DiffRate's published counts had come; Fold's own rows had been looked at
once before, from a CPU, and nothing was changed for it.
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the rows")
    options.add_argument("--docs", type=Path, default=DOCS, help="folder of the report")
    chosen = options.parse_args()
    write(chosen.csv, chosen.docs)


def write(path: Path, docs: Path) -> None:
    """The page and its plots, into a folder."""
    rows = _newest(path)
    parts = [HEAD, _summary(rows)]
    for table in ABOUT:
        found = [row for row in rows if row["table"] == table]
        if found:
            parts.append(_section(table, found, docs))
    if transferred := transfer_report.section(path, docs):
        parts.append(transferred)
    parts.append("## What only the paper has\n")
    parts.append("No weights of these models are at hand: quoted, and not measured here.\n")
    parts += [_quoted(each, 3) for each in QUOTED]
    (docs / "results.md").write_text("\n".join(parts), encoding="utf-8")


def _newest(path: Path) -> list[Row]:
    """The rows of the tables; where a run was repeated, those of the last one. Claims that a table
    no longer makes are left out."""
    found: dict[tuple[str, ...], Row] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"] and (not _is_claim(row) or _made(row)):
                found[row["table"], row["model"], row["name"]] = row
    return list(found.values())


def _made(row: Row) -> bool:
    """Does the table still make this claim?"""
    table = BY_NAME.get(row["table"])
    return table is None or any(claim.text == row["name"] for claim in table.claims)


def _ours(row: Row) -> bool:
    """Is it a claim of our own?"""
    table = BY_NAME.get(row["table"])
    return table is None or any(each.ours for each in table.claims if each.text == row["name"])


def _models(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _is_claim(row: Row) -> bool:
    return " − " in row["measure"]


def _verdict(row: Row) -> tuple[float, str]:
    error = float(row["change_error"])
    z = float(row["change"]) / error if error else 0.0
    return z, "agrees" if z > 2 else "disagrees" if z < -2 else "does not tell"


def _summary(rows: list[Row]) -> str:
    claims = [row for row in rows if _is_claim(row) and not _ours(row)]
    lines = ["## The paper's claims\n", "| table | agree | disagree | not told |",
             "|---|---|---|---|"]  # fmt: skip
    for table in ABOUT:
        found = [_verdict(row)[1] for row in claims if row["table"] == table]
        if found:
            counts = (found.count(kind) for kind in ("agrees", "disagrees", "does not tell"))
            lines.append(f"| {table} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join([*lines, ""])


def _section(name: str, rows: list[Row], docs: Path) -> str:
    table = BY_NAME.get(name)
    printed = table.printed if table else None
    lines = [f"## {name}\n", ABOUT[name], ""]
    if printed:
        lines += [f"The paper's column: {printed.table}, {printed.conditions}.", ""]
    if name == "off-the-shelf":
        lines += [_quoted(TABLE_2, 3)]
    for model in _models(rows):
        own = [row for row in rows if row["model"] == model]
        lines += [f"### {model}\n", *_measured(own, printed), "", *_claims(own), ""]
        if "@" in own[1]["name"]:
            lines += _plot(name, model, own, docs)
    return "\n".join(lines)


def _quoted(table: Quoted, level: int) -> str:
    lines = [f"{'#' * level} The paper's {table.title}\n", f"{table.conditions}.", ""]
    lines += [f"| {' | '.join(table.header)} |", "|---" * len(table.header) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join([*lines, "", "Whoever has the weights and ImageNet:\n", "```",
                      table.command, "```", ""])  # fmt: skip


def _measured(rows: list[Row], printed: Printed | None) -> list[str]:
    """Rows from before they were written down have no needed GMACs and no divergence."""
    more = ("needed", "KL") if any(row["kl"] for row in rows) else ()
    names = ("", "GMACs", *more[:1], "accuracy %", "change", *more[1:])
    names += ("paper: % (change) @ G",) if printed else ()
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        if not _is_claim(row):
            change = f"{float(row['change']):+.2f} ± {float(row['change_error']):.2f}"
            cells = [row["name"], f"{float(row['gmacs']):.3f}", f"{float(row['top1']):.2f}",
                     change if row["schedule"] else ""]  # fmt: skip
            if more:
                held = row["kl"] and row["schedule"]
                cells.insert(2, f"{float(row['gmacs_needed']):.3f}" if held else "")
                cells.append(
                    f"{float(row['kl']):.4f} ± {float(row['kl_error']):.4f}" if held else ""
                )
            cells += [printed.cell(row["name"])] if printed else []
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _claims(rows: list[Row]) -> list[str]:
    claims = [row for row in rows if _is_claim(row)]
    if not claims:
        return []
    lines = ["| claim | difference | standard errors | |", "|---|---|---|---|"]
    for row in claims:
        z, verdict = _verdict(row)
        difference = f"{float(row['change']):+.2f} ± {float(row['change_error']):.2f}"
        lines.append(f"| {row['name']} | {difference} | {z:+.1f} | {verdict} |")
    return lines


def _plot(table: str, model: str, rows: list[Row], docs: Path) -> list[str]:
    measured = [row for row in rows if not _is_claim(row)]
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


if __name__ == "__main__":
    main()
