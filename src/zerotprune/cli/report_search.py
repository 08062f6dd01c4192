"""How `zerotprune search` shows and writes what came of it: a table, what to make of it, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..measure import records
from ..measure.latency import TimeBudget
from ..measure.statistics import Mean
from ..plan import Plan
from ..plots.figure_files import save
from ..plots.search import search_figure
from ..schedule import Schedule
from ..search.choice import (
    Choice,
    Judged,
    difference,
    front,
    scores,
    thin_out,
)
from ..search.config import Measure
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


def report_choice(
    run: SearchRun,
    trials: list[FinishedTrial],
    count: int,
    time: TimeBudget | None,
    targets: ReportTargets,
    console: Console,
) -> None:
    """Nothing is written where the chosen schedule does not take the time that was asked for."""
    measure = run.inputs.measure
    with console.status("choosing on the second half"):
        choice = run.choose(trials, count)
    rows, chosen, default = choice.finalists, choice.chosen, choice.default
    title = f"{_title(run, len(trials))}, {run.gmacs:.3f} GMACs"
    console.print(table_of(title, measure, choice.unpruned, default, rows, chosen))
    for line in remarks(choice, len(trials)):
        console.print(line)
    if time is not None:
        timed = run.time(chosen.schedule)
        console.print(f"measured in turn at batch {run.inputs.batch} on {run.inputs.device}: "
                      f"{timed}")  # fmt: skip
        time.check(timed, "no schedule was written, the finished trials are kept")
    chosen.schedule.save(targets.out)
    references = [choice.unpruned, *([] if default is None else [default])]
    if targets.figure is not None:
        drawing = search_figure(trials, measure, rows, chosen, references, title)
        save(drawing, targets.figure)
    _append_rows(run, targets, [*references, replace(chosen, name="search")], choice.unpruned)
    console.print(f"chosen: {chosen.name}: {in_words(chosen.schedule)}")
    console.print(f"written: [bold]{targets.out}[/bold]")


def report_front(
    run: SearchRun,
    trials: list[FinishedTrial],
    count: int,
    targets: ReportTargets,
    console: Console,
) -> None:
    measure = run.inputs.measure
    with console.status("measuring the front on the second half"):
        rows = run.judge_trials(thin_out(front(trials, measure), count))
    unpruned, title = run.judge_unpruned(), _title(run, len(trials))
    console.print(table_of(title, measure, unpruned, None, rows, None))
    console.print("The front was found on the first half; believe the second, which had no say in "
                  "it. Differences are paired, on the second half, ± standard errors.")  # fmt: skip
    if targets.figure is not None:
        drawing = search_figure(trials, measure, rows, None, [unpruned], title)
        save(drawing, targets.figure)
    _append_rows(run, targets, [unpruned, *rows], unpruned)
    for each in rows:
        number = each.name.replace(" ", "-")
        out = targets.out.with_stem(f"{targets.out.stem}-{each.gmacs:.3f}-{number}")
        each.schedule.save(out)
        console.print(f"written: [bold]{out}[/bold]")


def _title(run: SearchRun, trials: int) -> str:
    images = run.first.count + run.second.count
    return f"{run.inputs.name}, {trials} trials, {images} images in two halves"


def table_of(
    title: str,
    measure: Measure,
    unpruned: Judged,
    default: Judged | None,
    rows: Sequence[Judged],
    chosen: Judged | None,
) -> Table:
    """Both halves of every row, and paired differences on the second. Without a chosen one the
    rows are a front, of several costs."""
    table = new_table(title, gap=0)
    table.add_column("schedule", overflow="fold", min_width=12)
    what = "top-1 %" if measure == "top1" else "KL"
    top1, several = measure == "top1", chosen is None
    columns = ["GMACs"] * several + [f"{what}\n1st half", f"{what}\n2nd half"]
    columns += ["to\nunpruned"] * top1 + ["to the\npaper's form"] * (default is not None)
    columns += ["KL"] * top1 + ["same %"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for each in (unpruned, *([default] if default else []), *rows):
        name = f"→ {each.name}" if each is chosen else each.name
        cells = [name, *([f"{each.gmacs:.3f}"] * several)]
        cells += [_value(each.first, measure), _value(each.second, measure)]
        if top1:  # the KL of the unpruned model is zero: KL is the difference
            cells.append("" if each is unpruned else _change(each, unpruned, measure))
        if default is not None:
            cells.append("" if each in (unpruned, default) else _change(each, default, measure))
        if top1:
            cells.append(f"{each.second.mean_kl:.2f}")
        cells.append(f"{each.second.agreement:.1f}")
        table.add_row(*cells, style="bold" if each is chosen else None)
    return table


def _value(outcome: Outcome, measure: Measure) -> str:
    mean, error = Mean.of(scores(outcome, measure))
    return f"{mean:.1f} ± {error:.1f}" if measure == "top1" else f"{abs(mean):.3f} ± {error:.3f}"


def _change(own: Judged, other: Judged, measure: Measure) -> str:
    mean, error = difference(own.second, other.second, measure)
    if measure == "kl":
        mean = -mean  # as KL itself: less is better
    return f"{mean:+.1f} ± {error:.1f}" if measure == "top1" else f"{mean:+.3f} ± {error:.3f}"


def remarks(choice: Choice, trials: int) -> list[str]:
    """What a reader of the table has to know before believing it."""
    points = choice.measure == "top1"
    unit, digits = (" points", 2) if points else (" of KL", 4)
    curse, count = choice.curse, len(choice.finalists)
    images = len(choice.chosen.second.kl)
    ties = "; equal ones by their KL" if points else ""
    also = "" if choice.default is None else " and the paper's form"
    said = [
        f"Ranked on the first half; the choice among the best {count}{also} was made on the "
        f"second, {images} images that had no say in the ranking{ties}. Differences are "
        "paired, on the second half, as are KL (unpruned ‖ pruned: less is better) and same (equal "
        "top-1 predictions); ± are standard errors.",
        "Winner's curse: the best of many looks better than it is on the images it was chosen "
        f"by. The best {count} of {trials} trials were {abs(curse.first):.{digits}f}{unit} "
        f"{'better' if curse.first >= 0 else 'worse'} on the first half than on the second, "
        "against the unpruned model; of what the chosen one shows on the second half, about "
        f"{curse.second:.{digits}f}{unit} are luck (bootstrap).",
    ]
    if choice.default is not None and choice.chosen is not choice.default:
        mean, error = difference(choice.chosen.second, choice.default.second, choice.measure)
        if mean < 2 * error:
            said.append(f"{images} images do not tell the chosen one from the paper's form.")
    return said


def _append_rows(
    run: SearchRun, targets: ReportTargets, rows: Sequence[Judged], unpruned: Judged
) -> None:
    if targets.csv is None:
        return
    inputs = run.inputs
    about: dict[str, object] = {
        "table": "search",
        "model": inputs.name,
        "data": Path(inputs.data).name,
        "batch": inputs.batch,
        "precision": inputs.precision,
        "seed": inputs.seed,
    }
    records.append(targets.csv, [_row(run, each, unpruned) | about for each in rows])


def _row(run: SearchRun, each: Judged, unpruned: Judged) -> dict[str, object]:
    """Of the second half: top-1, or without labels the equal predictions."""
    labelled = run.inputs.labelled

    def right(outcome: Outcome) -> Outcome:
        return outcome if labelled else Outcome(outcome.kl, outcome.same, outcome.same)

    own, other = right(each.second), right(unpruned.second)
    mean, error = Mean.of(scores(own, "top1"))
    change, change_error = difference(own, other, "top1")
    paper = Plan(each.schedule, run.surface.geometry).gmacs("paper")
    return {
        "images": len(each.second.kl),
        "measure": "top1" if labelled else "agreement",
        "name": each.name,
        "method": records.described(each.schedule),
        "schedule": each.schedule.one_line(),
        "gmacs": round(each.gmacs, 6),
        "gmacs_paper": round(paper, 6),
        "top1": round(mean, 3),
        "top1_error": round(error, 3),
        "change": round(change, 3),
        "change_error": round(change_error, 3),
    }


def in_words(schedule: Schedule) -> str:
    """Stage by stage, as `zerotprune info` does."""
    stages = [
        f"after block {stage.block}: keep {stage.keep:g}"
        + (f", similar {stage.similar}" if stage.similar else "")
        + (f", rounds {stage.rounds}" if stage.rounds is not None else "")
        for stage in schedule.stages
    ]
    return "; ".join(stages) or "no stages"
