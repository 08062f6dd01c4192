"""How `zerotprune search` shows and writes what came of it: a table, what to make of it, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..budgets.speed import TimeBudget
from ..files import check_writable
from ..measure import records
from ..measure.statistics import Mean
from ..plan import Plan
from ..plots.figures import check_figure_file, save
from ..plots.search import search_figure
from ..schedule import Schedule
from ..search.choice import Choice, Comparison, Judged, paired_gain
from ..search.objective import Outcome
from ..search.session import SearchRun
from ..search.study import FinishedTrial
from .console import new_table


@dataclass(frozen=True)
class ReportTargets:
    """The files that results go to."""

    out: Path
    figure: Path | None
    csv: Path | None

    def check(self) -> None:
        """Say at once, before any work is done, that one of them could not be written."""
        check_writable(self.out)
        if self.figure is not None:
            check_figure_file(self.figure)
        if self.csv is not None:
            records.check_rows_fit(self.csv)


def report(
    run: SearchRun,
    trials: list[FinishedTrial],
    count: int,
    time: TimeBudget | None,
    targets: ReportTargets,
    console: Console,
) -> None:
    """Nothing is written where the chosen schedule does not take the time that was asked for."""
    with console.status("measuring on the second half"):
        result = run.judge_front(trials, count) if run.gmacs is None else run.choose(trials, count)
    images = run.first.count + run.second.count
    title = f"{run.inputs.name}, {len(trials)} trials, {images} images in two halves"
    if run.gmacs is not None:
        title += f", {run.gmacs:.3f} GMACs"
    console.print(table_of(title, result))
    if isinstance(result, Choice):
        for line in remarks(result, len(trials)):
            console.print(line)
        chosen = result.chosen
        if time is not None:
            timed = run.time(chosen.schedule)
            console.print(f"measured in turn at batch {run.inputs.batch} on {run.inputs.device}: "
                          f"{timed}")  # fmt: skip
            time.check(timed, "no schedule was written, the finished trials are kept")
        console.print(f"chosen: {chosen.name}: {describe(chosen.schedule)}")
        results = {targets.out: replace(chosen, name="search")}
    else:
        console.print("The front was found on the first half; believe the second, which had no say "
                      "in it. Differences are paired, on the second half, ± standard errors."
                      )  # fmt: skip
        stem = targets.out.stem
        results = {
            targets.out.with_stem(f"{stem}-{each.gmacs:.3f}-{each.name.replace(' ', '-')}"): each
            for each in result.rows
        }
    for path, each in results.items():
        each.schedule.save(path)
        console.print(f"written: [bold]{escape(str(path))}[/bold]")
    if targets.figure is not None:
        save(search_figure(trials, result, title), targets.figure)
    if targets.csv is not None:
        records.append(targets.csv, _rows(run, [*result.references, *results.values()]))


def table_of(title: str, comparison: Comparison) -> Table:
    """Both halves of every row, and paired differences on the second. Without a chosen one the
    rows are a front, of several costs."""
    unpruned, default, chosen = comparison.unpruned, comparison.default, comparison.chosen
    labelled = unpruned.second.hits is not None
    what = "top-1 %" if labelled else "KL"
    columns: dict[str, Callable[[Judged], str]] = {}
    if chosen is None:
        columns["GMACs"] = lambda each: f"{each.gmacs:.3f}"
    columns[f"{what}\n1st half"] = lambda each: _value(each.first)
    columns[f"{what}\n2nd half"] = lambda each: _value(each.second)
    if labelled:  # the KL of the unpruned model is zero: KL is the difference
        columns["to\nunpruned"] = lambda each: "" if each is unpruned else _change(each, unpruned)
    if default is not None:
        columns[f"to the\n{default.name}"] = lambda each: (
            "" if each in (unpruned, default) else _change(each, default)
        )
    if labelled:
        columns["KL"] = lambda each: f"{each.second.mean_kl:.2f}"
    columns["same %"] = lambda each: f"{each.second.agreement:.1f}"
    table = new_table(title, gap=0)
    table.add_column("schedule", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for each in [*comparison.references, *comparison.rows]:
        name, style = (f"→ {each.name}", "bold") if each is chosen else (each.name, None)
        table.add_row(name, *(cell(each) for cell in columns.values()), style=style)
    return table


def _value(outcome: Outcome) -> str:
    mean, error = Mean.of(outcome.scores)
    return f"{abs(mean):.3f} ± {error:.3f}" if outcome.hits is None else f"{mean:.1f} ± {error:.1f}"


def _change(own: Judged, other: Judged) -> str:
    mean, error = paired_gain(own.second, other.second)
    if own.second.hits is None:
        return f"{-mean:+.3f} ± {error:.3f}"  # as KL itself: less is better
    return f"{mean:+.1f} ± {error:.1f}"


def remarks(choice: Choice, trials: int) -> list[str]:
    """What a reader of the table has to know before believing it."""
    points = choice.chosen.second.hits is not None
    unit, digits = (" points", 2) if points else (" of KL", 4)
    count, images = len(choice.rows), len(choice.chosen.second.kl)
    ties = "; equal ones by their KL" if points else ""
    also = "" if choice.default is None else f" and the {choice.default.name}"
    said = [
        f"Ranked on the first half; the choice among the best {count}{also} was made on the "
        f"second, {images} images that had no say in the ranking{ties}. Differences are "
        "paired, on the second half, as are KL (unpruned ‖ pruned: less is better) and same (equal "
        "top-1 predictions); ± are standard errors.",
        "Winner's curse: the best of many looks better than it is on the images it was chosen "
        f"by. The best {count} of {trials} trials were {abs(choice.lost):.{digits}f}{unit} "
        f"{'better' if choice.lost >= 0 else 'worse'} on the first half than on the second, "
        "against the unpruned model; of what the chosen one shows on the second half, about "
        f"{choice.luck:.{digits}f}{unit} are luck (bootstrap).",
    ]
    if choice.default is not None and choice.chosen is not choice.default:
        mean, error = paired_gain(choice.chosen.second, choice.default.second)
        if mean < 2 * error:
            said.append(
                f"{images} images do not tell the chosen one from the {choice.default.name}."
            )
    return said


def _rows(run: SearchRun, judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Of the second half: top-1, or without labels the equal predictions; the unpruned model is
    the first."""
    inputs, unpruned = run.inputs, _count_hits(judged[0].second)
    rows: list[dict[str, object]] = []
    for each in judged:
        own = _count_hits(each.second)
        mean, error = Mean.of(own.scores)
        change, change_error = paired_gain(own, unpruned)
        paper = Plan(each.schedule, run.surface.geometry).gmacs("paper")
        rows.append({
            "table": "search",
            "model": inputs.name,
            "data": Path(inputs.data).name,
            "batch": inputs.batch,
            "precision": inputs.precision,
            "seed": inputs.seed,
            "images": len(own.kl),
            "measure": "top1" if inputs.labelled else "agreement",
            "name": each.name,
            "method": records.described(each.schedule),
            "schedule": each.schedule.one_line(),
            "gmacs": round(each.gmacs, 6),
            "gmacs_paper": round(paper, 6),
            "top1": round(mean, 3),
            "top1_error": round(error, 3),
            "change": round(change, 3),
            "change_error": round(change_error, 3),
        })  # fmt: skip
    return rows


def _count_hits(outcome: Outcome) -> Outcome:
    return outcome if outcome.hits is not None else replace(outcome, hits=outcome.same)


def describe(schedule: Schedule) -> str:
    """Stage by stage, as `zerotprune info` does."""
    stages = [
        f"after block {stage.block}: keep {stage.keep:g}"
        + (f", similar {stage.similar}" if stage.similar else "")
        + (f", rounds {stage.rounds}" if stage.rounds is not None else "")
        for stage in schedule.stages
    ]
    return "; ".join(stages) or "no stages"
