"""Run a table of the paper on the real models: contenders, claims, rows of results.csv."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from benchmarks.inputs import MODELS, REPORT, measuring_images, parsed, reported, spread
from benchmarks.tables.printed import Printed
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result, Setting, compare


@dataclass(frozen=True)
class Claim:
    """The first contender is at least as accurate as the second: so says the paper, or so say we
    (`ours`)."""

    text: str
    first: str
    second: str
    ours: bool = False


@dataclass(frozen=True)
class Table:
    """`about` says what the paper found, and on what it is tried here.

    `contenders` are made for a model; the images are for methods whose cost depends on them.
    """

    name: str
    about: str
    contenders: Callable[[nn.Module, Tensor], list[Contender]]
    claims: Sequence[Claim] = ()
    models: Sequence[str] = tuple(MODELS)
    printed: Printed | None = None  # what the paper has for the same rows


def about(doc: str | None) -> str:
    """What a module's docstring says before its command."""
    return (doc or "").partition("Command:")[0].strip()


def main(doc: str | None, tables: Sequence[Table]) -> None:
    options = measuring_images(doc)
    names = [table.name for table in tables]
    if len(names) > 1:
        options.add_argument("--only", nargs="+", choices=names, default=names)
    chosen = parsed(options)
    run([table for table in tables if table.name in getattr(chosen, "only", names)], chosen)


def run(tables: Sequence[Table], chosen: argparse.Namespace) -> None:
    """Each model and its images are loaded once for all tables."""
    for name in MODELS:
        wanted = [table for table in tables if name in table.models]
        if not wanted:
            continue
        model, held = reported(name, chosen)
        some = spread(held, 128).to(chosen.device)
        for table in wanted:
            contenders = [UNPRUNED, *table.contenders(model, some)]
            results = compare(model, contenders, held, setting=Setting(chosen.device))
            about_run = {"model": name, "data": REPORT, "batch": chosen.batch}
            write(table, results, about_run, chosen.csv)


def write(table: Table, results: list[Result], about: dict[str, object], path: Path) -> None:
    """Rows for the contenders, then for the claims: paired differences on the same images."""
    about = {"precision": "float32", **about, "table": table.name, "seed": 0}
    rows = [records.row(each, results[0], str(about["precision"])) | about for each in results]
    by_name = {result.contender.name: result for result in results}
    for claim in table.claims:
        if claim.first not in by_name or claim.second not in by_name:
            continue  # a budget that a method cannot meet
        first, second = by_name[claim.first], by_name[claim.second]
        change, error = first.change(second)
        difference = {"change": round(change, 3), "change_error": round(error, 3)}
        named = {"name": claim.text, "measure": f"{claim.first} − {claim.second}"}
        rows.append({**about, **named, **difference, "images": len(first.hits)})
    records.append(path, rows)
    for row in rows:
        cells = (row.get("gmacs", ""), row.get("top1", ""), row["change"], row["change_error"])
        print(table.name, about["model"], row["name"], *cells, sep=" | ", flush=True)
