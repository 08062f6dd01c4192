"""Write docs/results.md and its plots from results.csv: what agrees with the paper and what not.

Two tables of other pages are read off the same rows: in measuring.md and searching.md.

Command: python -m benchmarks.report
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import sections
from benchmarks.claims import Row, is_claim, newest, verdict
from benchmarks.figures import listing as figures
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
    transfer,
    transfer_report,
)
from benchmarks.tables.listing import TABLES
from benchmarks.tables.printed import QUOTED
from benchmarks.tables.table import Table, about

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
that are only quoted here. What is trained, [transfer](#transfer), has a command of its own.

Top-1 on 2,000 ImageNet validation images (two of each class, `report`); where nothing that was
chosen on the 1,000 images of `tune` takes part, on all 3,000. Float32, change
against the unpruned model in points with its paired standard error, and the divergence of the
answers from the unpruned model's (KL, in nats). GMACs count all matrix products with patch
embedding, and the scoring; "needed" is what is left once the last block runs for CLS alone and
what is dropped skips its MLP. The paper's count for DeiT-S leaves the embedding out (4.55, with it
4.61); its 1.26 for DeiT-T is with it. The copy of DeiT-Ti has LayerNorm parameters that whoever
published it rounded to 1/64. DINOv2-S: 10 nearest neighbours (cosine, votes weighted by exp(cosine
/ 0.07)) on 555 Oxford pets at 224 px. Where a table of ours answers one of the paper's, the
paper's cells stand beside: its model is another and larger one, on all 50,000 images, so the order
of the variants can be compared, not their level. A claim *agrees* or *disagrees* when the paired
difference is more than two standard errors from zero; else the images do not tell. With so many
claims some would pass that line by chance alone. `zero-tprune` is the method in [our form of
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
    parts = [HEAD, *first_lines(rows, _of_the_paper), HOW, sections.runs(rows), _counts(rows)]
    special: dict[str, Callable[[list[Row], Path], list[str]]] = {
        settings.SETTINGS: sections.sensitive,
        throughput.NAME: sections.fast,
        scaling.TABLE.name: sections.curved,
    }
    for name in dict.fromkeys(ORDER):
        found = [row for row in rows if row["table"] == name]
        if found and name in special:
            parts += special[name](found, docs)
        elif found:
            parts += sections.usual(BY_NAME[name], found, docs)
    tables = {row["table"] for row in rows}
    if transferred := transfer_report.section(path, docs):
        parts.append(transferred)
        tables.add(transfer.TABLE)
    parts += figures.section(tables)
    parts.append("## What only the paper has\n")
    parts.append(
        "Quoted. Of these models only those that have a section above were measured here: no "
        "weights of the others are at hand.\n"
    )
    parts += [line for each in QUOTED for line in sections.quoted(each)]
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


def _counts(rows: Sequence[Row]) -> str:
    claims = [row for row in rows if is_claim(row) and _of_the_paper(row)]
    lines = ["## The paper's claims\n", "| table | agree | disagree | not told |",
             "|---|---|---|---|"]  # fmt: skip
    for table in dict.fromkeys(row["table"] for row in claims):
        found = [verdict(row) for row in claims if row["table"] == table]
        counts = (found.count(kind) for kind in ("agrees", "disagrees", "does not tell"))
        lines.append(f"| {table} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
