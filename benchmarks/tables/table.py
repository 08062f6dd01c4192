"""Run a table on the real models: contenders, claims, rows of results.csv."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from torch import Tensor, nn

from benchmarks.inputs import MODELS, REPORT, TUNE, Bench, measuring_images, parsed, say, spread
from benchmarks.tables.printed import Printed, Quoted
from zerotprune import Schedule
from zerotprune.budgets.solving import bisect
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from zerotprune.measure.statistics import Mean

DRAWS = 5  # per random contender
_DRAW = ", draw "


@dataclass(frozen=True)
class Claim:
    """The first contender is at least as accurate as the second: a claim of the paper, or a
    question of `ours`."""

    text: str
    first: str
    second: str
    ours: bool = False


@dataclass(frozen=True)
class Table:
    """`about` says what the paper found and what was measured here.

    `contenders` are made for a model; the images are for methods whose cost depends on them. If no
    contender was chosen on `tune`, `data` includes those images too.
    """

    name: str
    about: str
    contenders: Callable[[nn.Module, Tensor], list[Contender]]
    claims: Sequence[Claim] = ()
    models: Sequence[str] = tuple(MODELS)
    printed: Printed | None = None  # the paper's cells for the same rows
    quoted: Quoted | None = None  # a table of the paper with other rows
    data: tuple[str, ...] = (REPORT,)


ALL_IMAGES = (TUNE, REPORT)


def about(doc: str | None) -> str:
    """Return a module's docstring up to its command."""
    return (doc or "").partition("Command:")[0].strip()


def draws(contender: Callable[[int], Contender]) -> list[Contender]:
    """Repeat a contender with several seeds; `pooled` makes one row of them."""
    made = [contender(seed) for seed in range(DRAWS)]
    return [replace(each, name=f"{each.name}{_DRAW}{at}") for at, each in enumerate(made, start=1)]


def within_reach(wanted: Iterable[tuple[str, Callable[[], Schedule]]]) -> Iterator[Contender]:
    """Yield contenders, leaving out those whose method cannot meet the budget."""
    for name, make in wanted:
        try:
            schedule = make()
        except ValueError as error:
            say(f"{name} is left out: {error}")
        else:
            yield Contender(name, schedule)


def solved(
    turn: Callable[[float], tuple[Schedule, float] | None], target: float, within: float = 0.01
) -> Schedule:
    """Bisect for a schedule of this cost; fail if none is within the tolerance."""
    found = bisect(turn, target)
    assert found is not None
    assert found.miss < within
    return found.setting


def main(doc: str | None, tables: Sequence[Table]) -> None:
    options = measuring_images(doc)
    names = [table.name for table in tables]
    if len(names) > 1:
        options.add_argument("--only", nargs="+", choices=names, default=names)
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    chosen = parsed(options)
    run([table for table in tables if table.name in getattr(chosen, "only", names)], chosen)


def run(tables: Sequence[Table], chosen: argparse.Namespace) -> None:
    """Run all tables, loading each model and its images once."""
    for name in getattr(chosen, "models", MODELS):
        wanted = [table for table in tables if name in table.models]
        if wanted:
            bench = Bench(name, chosen)
            for table in wanted:
                measure(table, bench)


def measure(table: Table, bench: Bench) -> list[Result]:
    """Measure one table on one model and write its rows."""
    chosen, held = bench.chosen, bench.held(*table.data)
    some = spread(held, 128).to(chosen.device)
    contenders = [UNPRUNED, *table.contenders(bench.model, some)]
    say(f"{table.name}, {bench.name}: {len(contenders)} contenders")
    results = pooled(compare(bench.model, contenders, held, setting=Setting(chosen.device)))
    data = " + ".join(table.data)
    about_run = {"model": bench.name, "data": data, "batch": chosen.batch}
    write(table, results, about_run, chosen.csv)
    return results


def pooled(results: list[Result]) -> list[Result]:
    """Average the draws of a contender, image by image."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.contender.name.partition(_DRAW)[0], []).append(result)
    return [each[0] if len(each) == 1 else _mean_of(name, each) for name, each in groups.items()]


def _mean_of(name: str, draws: list[Result]) -> Result:
    first = draws[0]
    return replace(
        first,
        contender=Contender(name, first.contender.schedule),
        hits=[fmean(each) for each in zip(*(draw.hits for draw in draws), strict=True)],
        hits5=[fmean(each) for each in zip(*(draw.hits5 for draw in draws), strict=True)],
        kl=[fmean(each) for each in zip(*(draw.kl for draw in draws), strict=True)],
    )


def write(table: Table, results: list[Result], about: dict[str, object], path: Path) -> None:
    """Write rows for the contenders, then for the claims: paired differences in accuracy, and in
    how much less the first one diverges from the unpruned model."""
    about = {"precision": "float32", **about, "table": table.name, "seed": 0}
    rows = [records.row(each, results[0], str(about["precision"])) | about for each in results]
    by_name = {result.contender.name: result for result in results}
    for claim in table.claims:
        if claim.first not in by_name or claim.second not in by_name:
            continue  # a budget that a method cannot meet
        first, second = by_name[claim.first], by_name[claim.second]
        change, error = first.change(second)
        difference: dict[str, object] = {
            "change": round(change, 3),
            "change_error": round(error, 3),
        }
        if first.kl:
            less = [other - own for own, other in zip(first.kl, second.kl, strict=True)]
            difference["kl"], difference["kl_error"] = Mean.of(less).to_json()
        named = {"name": claim.text, "measure": f"{claim.first} − {claim.second}"}
        rows.append({**about, **named, **difference, "images": len(first.hits)})
    records.append(path, rows)
    for row in rows:
        cells = (row.get("gmacs", ""), row.get("top1", ""), row["change"], row["change_error"])
        say(" | ".join(map(str, (table.name, about["model"], row["name"], *cells))))
