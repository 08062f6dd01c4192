"""Run a table on the real models: contenders, claims, rows of results.csv."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from benchmarks.inputs import (
    MODELS,
    REPORT,
    TUNE,
    Bench,
    CustomBench,
    add_any_model,
    add_speed,
    benches,
    measuring_images,
    parsed,
    say,
)
from benchmarks.tables.printed import Printed, Quoted
from zerotprune import Schedule, Stage
from zerotprune.backbones import backbone
from zerotprune.budgets.solving import bisect
from zerotprune.measure import records
from zerotprune.measure import speed as clock
from zerotprune.measure.accuracy import UNPRUNED, Contender, Mean, Result, Setting, compare
from zerotprune.plan import Plan
from zerotprune.shapes import Precision

DRAWS = 5  # per random contender
_DRAW = ", draw "


@dataclass(frozen=True)
class Claim:
    """The first contender is at least as accurate as the second, or loses by a share `less` than
    it: a claim of the paper, or a question of `ours`."""

    text: str
    first: str
    second: str
    ours: bool = False
    less: float = 0.0

    def difference(self, first: Result, second: Result, unpruned: Result) -> Mean:
        """Return the points of top-1 by which the claim is met, with their paired standard
        error."""
        rest = 1 - self.less
        hits = zip(first.hits, second.hits, unpruned.hits, strict=True)
        return Mean.of([pruned - whole - rest * (other - whole) for pruned, other, whole in hits],
                       scale=100)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """`about` says what the paper found and what was measured here.

    `contenders` are made for a model; the images are for methods whose cost depends on them. If no
    contender was chosen on `tune`, `data` includes those images too. The rows of a table that is
    `timed` get their images/s as well, if asked for.
    """

    name: str
    about: str
    contenders: Callable[[nn.Module, Tensor], list[Contender]]
    claims: Sequence[Claim] = ()
    models: Sequence[str] = tuple(MODELS)
    printed: Printed | None = None  # the paper's cells for the same rows
    quoted: Quoted | None = None  # a table of the paper with other rows
    data: tuple[str, ...] = (REPORT,)
    timed: bool = False
    anywhere: str = ""  # the command that runs it on any classifier

    @property
    def speeds(self) -> str:
        """Name of the table's images/s in the rows, which may come from another run."""
        return f"{self.name}: images/s"


ALL_IMAGES = (TUNE, REPORT)


def on_any_model(module: str, *options: str) -> str:
    """Return the command of a table for any classifier."""
    named = " ".join(("python -m", f"benchmarks.tables.{module}", *options))
    return f"{named} \\\n    --model deit_small_patch16_224 --weights FILE --data IMAGENET/val"


def about(doc: str | None) -> str:
    """Return a module's docstring up to its command."""
    return (doc or "").partition("Command:")[0].strip()


def draws(contender: Callable[[int], Contender]) -> list[Contender]:
    """Repeat a contender with several seeds; `pooled` makes one row of them."""
    made = [contender(seed) for seed in range(DRAWS)]
    return [
        replace(contender, name=f"{contender.name}{_DRAW}{at}")
        for at, contender in enumerate(made, start=1)
    ]


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
    nearest = bisect(turn, target)
    assert nearest is not None
    assert nearest.miss < within
    return nearest.setting


def preset_for(model: nn.Module, name: str) -> Schedule:
    """Return a schedule of the paper. It is for 12 blocks and 196 patches: other models have its
    stages at the same shares of the depth, with the same share of similar tokens."""
    geometry, preset = backbone(model).geometry, Schedule.preset(name)
    stages: dict[int, Stage] = {}
    for stage in preset.stages:
        block = min(max(round(stage.block * geometry.depth / 12), 1), geometry.depth - 1)
        similar = round(stage.similar * geometry.patches / 196)
        stages.setdefault(block, replace(stage, block=block, similar=similar))
    return replace(preset, stages=tuple(stages.values()))


def main(doc: str | None, tables: Sequence[Table]) -> None:
    options = measuring_images(doc)
    names = [table.name for table in tables]
    if len(names) > 1:
        options.add_argument("--only", nargs="+", choices=names, default=names)
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    if all(table.anywhere for table in tables):
        add_any_model(options)
    if any(table.timed for table in tables):
        options.add_argument("--timed", action="store_true", help="images/s too, of noise")
        add_speed(options)
    chosen = parsed(options)
    run([table for table in tables if table.name in getattr(chosen, "only", names)], chosen)


def run(tables: Sequence[Table], chosen: argparse.Namespace) -> None:
    """Run all tables, loading each model and its images once."""
    names = getattr(chosen, "models", MODELS)
    for bench in benches([name for name in names if any(name in table.models for table in tables)],
                         chosen):  # fmt: skip
        for table in tables:
            if isinstance(bench, CustomBench) or bench.name in table.models:
                measure(table, bench)


def measure(table: Table, bench: Bench) -> list[Result]:
    """Measure one table on one model and write its rows."""
    chosen = bench.chosen
    some = bench.some(128, *table.data)
    proposed = table.contenders(bench.model, some)
    contenders = [UNPRUNED, *fitting(proposed, bench.model)]
    say(f"{table.name}, {bench.name}: {len(contenders)} contenders")
    images = bench.read(*table.data)
    results = pooled(compare(bench.model, contenders, images, setting=Setting(chosen.device)))
    about_run = {"model": bench.name, "data": bench.data(*table.data), "batch": chosen.batch}
    write(table, results, about_run, chosen.csv)
    if table.timed and getattr(chosen, "timed", False):
        measure_speed(table, [result.contender for result in results], bench)
    return results


def fitting(contenders: Iterable[Contender], model: nn.Module) -> Iterator[Contender]:
    """Yield what the model can run: one without a CLS token cannot be ranked by its attention."""
    for contender in contenders:
        try:
            Plan(contender.schedule, backbone(model).geometry).check()
        except ValueError as error:
            say(f"{contender.name} is left out: {error}")
        else:
            yield contender


def measure_speed(table: Table, contenders: Sequence[Contender], bench: Bench) -> None:
    """Write the images/s of every row, eager, in batches of noise."""
    chosen = bench.chosen
    setup = clock.Setup(chosen.device, ("eager",), chosen.rounds)
    noise = clock.noise(bench.model, 2, chosen.device, torch.float32)
    entered = [clock.price(bench.model, contender, noise) for contender in contenders]
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    if chosen.device == "cpu":
        precisions = precisions[:1]
    batches = [chosen.speed_batch]
    for group in clock.sweep(bench.model, entered, precisions, batches, setup, say):
        about = {"table": table.speeds, "model": bench.name, "seed": clock.SEED}
        rows = [records.speed_row(speed, group) | about for speed in group.speeds]
        records.append(chosen.csv, rows)
        for row in rows:
            cells = ("table", "model", "name", "precision", "images_per_second")
            say(" | ".join(str(row.get(cell, "")) for cell in cells))


def pooled(results: list[Result]) -> list[Result]:
    """Average the draws of a contender, image by image."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.contender.name.partition(_DRAW)[0], []).append(result)
    return [
        group[0] if len(group) == 1 else _mean_of(name, group) for name, group in groups.items()
    ]


def _mean_of(name: str, draws: list[Result]) -> Result:
    first = draws[0]
    return replace(
        first,
        contender=Contender(name, first.contender.schedule),
        hits=[fmean(values) for values in zip(*(draw.hits for draw in draws), strict=True)],
        hits5=[fmean(values) for values in zip(*(draw.hits5 for draw in draws), strict=True)],
        kl=[fmean(values) for values in zip(*(draw.kl for draw in draws), strict=True)],
    )


def write(table: Table, results: list[Result], about: dict[str, object], path: Path) -> None:
    """Write rows for the contenders, then for the claims: paired differences in accuracy, and in
    how much less the first one diverges from the unpruned model."""
    about = {"precision": "float32", **about, "table": table.name, "seed": 0}
    rows = [records.row(result, results[0], str(about["precision"])) | about for result in results]
    by_name = {result.contender.name: result for result in results}
    for claim in table.claims:
        if claim.first not in by_name or claim.second not in by_name:
            continue  # a budget that a method cannot meet
        first, second = by_name[claim.first], by_name[claim.second]
        change, error = claim.difference(first, second, results[0])
        difference: dict[str, object] = {
            "change": round(change, 3),
            "change_error": round(error, 3),
        }
        if first.kl and not claim.less:  # a share of a divergence is no share of the loss
            less = [other - one for one, other in zip(first.kl, second.kl, strict=True)]
            difference["kl"], difference["kl_error"] = Mean.of(less).to_json()
        named = {"name": claim.text, "measure": f"{claim.first} − {claim.second}"}
        rows.append({**about, **named, **difference, "images": len(first.hits)})
    records.append(path, rows)
    for row in rows:
        cells = (row.get("gmacs", ""), row.get("top1", ""), row["change"], row["change_error"])
        say(" | ".join(map(str, (table.name, about["model"], row["name"], *cells))))
