"""Write the results pages and their plots from results.csv.

docs/results.md says what holds and what does not; docs/results-appendix.md has every table. The
tables in README.md, fold.md, measuring.md and searching.md come from the same rows.

Command: python -m benchmarks.report
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import sections
from benchmarks.claims import Row, is_claim, newest, read, verdict
from benchmarks.figures import listing as figures
from benchmarks.inputs import DOCS, RESULTS, parser
from benchmarks.inserts import inserts, refresh
from benchmarks.search import searched, settings
from benchmarks.speed import tables as speed_tables
from benchmarks.speed import throughput
from benchmarks.summary import by_divergence, first_page, is_paper_claim, judged
from benchmarks.tables import (
    depth_adaptive,
    early_form,
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
#: every table whose section has the usual layout
BY_NAME = {table.name: table
           for table in (*TABLES, settings.TABLE, SEARCHED,
                         *(entry.table for entry in large.MODELS))}  # fmt: skip
#: the order of the sections
ORDER = ("contribution", settings.TABLE.name, settings.SETTINGS, "features", "partition", "metric",
         "attention, S-stage on", "attention", "order", published.TABLE.name, throughput.NAME,
         gap.TABLE.name, off_the_shelf.TABLE.name, scaling.TABLE.name, depth_adaptive.TABLE.name,
         "searched", "fold", "rule or counts", "tome-r", "dinov2",
         *(entry.table.name for entry in large.MODELS[1:]))  # fmt: skip

APPENDIX = """# Results: the tables

Every table behind the [results](results.md). `python -m benchmarks.report` writes both pages from
`benchmarks/results.csv`, whose rows have their command, commit, versions, hardware and seed. To
measure again and rewrite the pages: `python -m benchmarks.all --shared DIR`; with `--weights DIR
--data IMAGENET/val` also for the models that are only quoted here. [Transfer](#transfer) has its
own command.

## How to read the tables

- **Images:** 2,000 ImageNet validation images, two of each class (`report`). Tables in which
  nothing was chosen on the 1,000 images of `tune` use all 3,000. DINOv2-S: 10 nearest neighbors
  (cosine, votes weighted by exp(cosine / 0.07)) on 555 Oxford pets at 224 px.
- **Numbers:** float32; change against the unpruned model in points, with its paired standard error;
  KL divergence of the outputs from the unpruned model's, in nats.
- **GMACs** count all matrix products, the patch embedding and the scoring. "Needed" is what remains
  when the last block runs for CLS alone and dropped tokens skip their MLP. The paper's 4.55 for
  DeiT-S leaves the embedding out (4.61 with it); its 1.26 for DeiT-T includes it.
- **The paper's cells** are of another, larger model on all 50,000 images: compare the order of the
  variants, not their level.
- **Verdicts:** a claim of the paper *agrees* or *disagrees* if the paired difference is more than
  two standard errors from zero; a question of our own is answered *yes* or *no*; else it is
  *inconclusive*. With this many claims, a few pass by chance. "Loses 60 % less than" is
  tested as the method's change minus 0.4 of the other's.
- **Schedules:** `zero-tprune` has [our form](budgets.md#zero-tprunes-two-forms), "early" in the
  tables; `zero-tprune-paper` has the published pattern, similar and unimportant tokens in every
  stage. The paper gives zero-tp-a, -b and -c by their cost alone: these are our schedules for that
  cost.
- **Weights:** this copy of DeiT-Ti has LayerNorm parameters that its publisher rounded to 1/64.

We looked at the `report` images before, while finishing the code. They showed that a schedule with
the blocks of the paper's ablation falls off at half of the cost, and we made our form because of
that. The form itself and the searched schedules were chosen on `tune` alone.
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the rows")
    options.add_argument("--docs", type=Path, default=DOCS, help="folder of the report")
    chosen = options.parse_args()
    write(chosen.csv, chosen.docs)


def write(path: Path, docs: Path) -> None:
    """Write both pages and their plots into a folder, and refresh the other pages' tables."""
    recent = newest(path)
    rows = [row for row in recent if row["table"] in ORDER and _is_current(row)]
    (docs / "results.md").write_text(first_page(rows, BY_NAME), encoding="utf-8")
    (docs / "results-appendix.md").write_text(_appendix(rows, recent, path, docs), encoding="utf-8")
    refresh(inserts(), rows, docs)
    refresh(speed_tables.inserts(), read(path), docs)


def _appendix(rows: Sequence[Row], recent: Sequence[Row], path: Path, docs: Path) -> str:
    """Return the tables in order, then transfer, the paper's figures and what is only quoted."""
    parts = [APPENDIX, sections.runs(rows), _counts(rows)]
    special: dict[str, Callable[[list[Row], Path], list[str]]] = {
        settings.SETTINGS: sections.sensitive,
        throughput.NAME: sections.fast,
        scaling.TABLE.name: sections.curved,
    }
    for name in dict.fromkeys(ORDER):
        of_table = [row for row in rows if row["table"] == name]
        if of_table and name in special:
            parts += special[name](of_table, docs)
        elif of_table:
            speeds = [row for row in recent if row["table"] == BY_NAME[name].speeds]
            parts += sections.usual(BY_NAME[name], of_table, docs, speeds)
    parts.append(early_form.SECTION)
    tables = {row["table"] for row in rows}
    if transferred := transfer_report.section(path, docs):
        parts.append(transferred)
        tables.add(transfer.TABLE)
    parts += figures.section(tables)
    parts.append("## What only the paper has\n")
    parts.append(
        "Quoted. We measured only the models that have a section above; we have no weights of the "
        "others.\n"
    )
    parts += [line for quote in QUOTED for line in sections.quoted(quote)]
    return "\n".join(parts).rstrip() + "\n"


def _is_current(row: Row) -> bool:
    """Is the row a measurement, or a claim that its table still makes?"""
    table = BY_NAME.get(row["table"])
    if not is_claim(row) or table is None or table is SEARCHED:
        return True
    return any(claim.text == row["name"] for claim in table.claims)


def _counts(rows: Sequence[Row]) -> str:
    claims = [row for row in rows if is_claim(row) and is_paper_claim(row, BY_NAME)]
    lines = ["## The paper's claims by table\n", "| table | agree | disagree | inconclusive |",
             "|---|---|---|---|"]  # fmt: skip
    for table in dict.fromkeys(row["table"] for row in claims):
        verdicts = [verdict(row) for row in claims if row["table"] == table]
        counts = (verdicts.count(kind) for kind in ("agrees", "disagrees", "inconclusive"))
        lines.append(f"| {table} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join([*lines, "", *by_divergence(judged(rows, BY_NAME)), ""])


if __name__ == "__main__":
    main()
