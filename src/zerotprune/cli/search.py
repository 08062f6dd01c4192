"""`zerotprune search`: the best schedule for a budget, on your model and images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.table import Table

from ..backbones import backbone
from ..budgets import Budget
from ..budgets.speed import TimeBudget
from ..calibrate.calibration import Calibration, check_used
from ..data.images import check_classes
from ..measure import records
from ..measure.accuracy import Mean
from ..method import Method
from ..methods import DEFAULT, name_of, names, resolve
from ..plots.figures import save
from ..plots.search import search_figure
from ..safety.files import check_writable
from ..safety.ranges import RANGES
from ..schedule import Schedule
from ..search.choice import Choice, Comparison, Judged, paired_gain
from ..search.objective import Outcome
from ..search.session import SearchInputs, SearchRun, prepare_search
from ..search.storage import StudyLocation, set_once
from ..search.study import (
    FinishedTrial,
    SamplerName,
    SearchConfig,
    best_so_far,
    read_trials,
)
from ..shapes import Precision
from ..surgery import restore_
from .checks import Written
from .console import console_for, new_table, print_path, print_table, progress_bar
from .options import (
    BatchOptions,
    BudgetOptions,
    CsvFile,
    DataName,
    FigureFile,
    Input,
    InputName,
    ModelName,
    ModelOptions,
    Output,
    Seed,
    Workers,
    refuse_torchrun,
    resolve_device,
)


def search(
    model: ModelName,
    data: DataName,
    *,
    budget: BudgetOptions = BudgetOptions(),
    method: InputName = DEFAULT,
    labels: bool = True,
    loading: ModelOptions = ModelOptions(),
    reading: BatchOptions = BatchOptions(),
    precision: Precision = "float32",
    calibration: Input | None = None,
    out: Output = Path("schedule.json"),
    trials: Annotated[int, RANGES["trials"]] = 200,
    sampler: SamplerName = "random",
    finalists: Annotated[int, RANGES["finalists"]] = 8,
    workers: Workers = 1,
    storage: Annotated[str, Written()] | None = None,
    study: str = "search",
    figure: FigureFile = None,
    csv: CsvFile = None,
    cache_gb: Annotated[float, RANGES["cache_gb"]] = 4.0,
    seed: Seed = 0,
) -> None:
    """Find the best schedule for a budget by Monte-Carlo search, and write it as JSON.

    Run the same command again to continue after an interruption. Ctrl-C ends the search with the
    best schedule so far, and exit code 130.

    Example: `zerotprune search deit_small_patch16_224 images --cost 0.6 --trials 1000`

    Parameters
    ----------
    method
        A method with stages to search: zero-tprune, fold, tome and others; or FILE.py:CLASS.
    labels
        Search by top-1 on the labels; without labels, by KL(unpruned ‖ pruned) of the outputs.
    precision
        Of the model; scores are always float32.
    calibration
        The VHF range to search with: a file that `calibrate` wrote.
    out
        The schedule, for --schedule of other commands. With nsga2, one file for every schedule in
        the table, with its GMACs in the name.
    trials
        Schedules to try, in total over all workers and resumed runs.
    sampler
        random; tpe, which learns from earlier trials; or nsga2 for the whole accuracy–cost front,
        without a budget.
    finalists
        How many of the best on the first half of the images to compare on the second half, with
        the schedule that the budget gives without a search. The best of them is chosen.
    workers
        Processes on this machine. On other machines, run the same command with the same --storage.
    storage
        A file for the trials, or an Optuna URL (postgresql+psycopg://…). Default: beside --out.
    study
        The study's name in the storage.
    figure
        Plot all trials and the chosen one into this file.
    cache_gb
        Memory for the outputs of the blocks before the first stage, which all trials share.
    seed
        For the sampler and the two halves.
    """
    if workers < 1:
        raise ValueError(f"--workers must be at least 1 for a search, got {workers}")
    limits = _limits(budget, sampler)
    check_writable(out)
    location = StudyLocation(storage or str(out.with_suffix(".trials.db")), study)
    location.check()
    console = console_for()
    with console.status("loading model and images"):
        chosen, device = _searchable(method), resolve_device(loading.device)
        loaded = loading.load(model)
        if calibration is not None:
            check_used([chosen])
            calibrated = Calibration.load_for(calibration, model, loaded)
            chosen = calibrated.applied(Schedule((), chosen)).method
        images = reading.open(data, loaded, loading.size, labeled=labels)
        classes = backbone(loaded).outputs
        if labels and classes:
            check_classes(images, classes)
        inputs = SearchInputs(
            model, loading.load_kwargs(model), loaded, chosen, images, data, labels,
            reading.batch, device, precision, seed, reading.strict,
        )  # fmt: skip
        run = prepare_search(inputs, limits, location, workers=workers, memory=1e9 * cache_gb,
                             say=console.print)  # fmt: skip
    config = SearchConfig(trials, run.gmacs, inputs.measure, sampler, seed)
    # Earlier trials count, whichever sampler drew them.
    first_sampler = set_once(run.study, "sampler", sampler)
    if earlier := len(read_trials(run.study, config)):
        by = "" if first_sampler == sampler else f", begun with --sampler {first_sampler}"
        console.print(f"continuing after {earlier} of {trials} trials{by}", style="yellow")
    with progress_bar(console) as progress:
        bar = progress.add_task("searching", total=trials, note="")

        def advance(finished: list[FrozenTrial]) -> None:
            best = best_so_far(finished, config)
            note = "" if best is None else f"best so far {best}"
            progress.update(bar, completed=len(finished), note=note)

        complete = run.explore(config, workers, advance)
    finished = read_trials(run.study, config)
    if not complete:
        console.print(
            f"stopped after {len(finished)} of {trials} trials: run the same command to continue",
            style="yellow",
        )
    if finished:
        targets = ReportTargets(out, figure, csv)
        _conclude(run, finished, finalists, budget.time, targets, console)
    restore_(loaded)
    if not complete:
        raise KeyboardInterrupt


def _limits(budget: BudgetOptions, sampler: SamplerName) -> Budget | TimeBudget | None:
    refuse_torchrun("a search has its own --workers")
    if budget.schedule is not None or budget.tuned:
        raise ValueError("a search finds a schedule: give it a budget, not --schedule or --tuned")
    if sampler == "nsga2" and budget.options:
        raise ValueError("nsga2 searches all budgets at once: give it none")
    if sampler != "nsga2" and len(budget.options) != 1:
        raise ValueError("give one budget: --cost, --gmacs, --speedup or --latency-ms")
    budget.check()
    if not budget.options:
        return None
    return budget.time or Budget(budget.cost, budget.gmacs)


def _searchable(name: str) -> Method:
    method = resolve(name)
    if not method.searchable:
        searchable = ", ".join(one for one in names() if resolve(one).searchable)
        raise ValueError(f"a search needs one of {searchable} as --method, got {name_of(method)}")
    return method


@dataclass(frozen=True)
class ReportTargets:
    """The files that results go to."""

    out: Path
    figure: Path | None
    csv: Path | None


def _conclude(
    run: SearchRun,
    trials: list[FinishedTrial],
    count: int,
    time: TimeBudget | None,
    targets: ReportTargets,
    console: Console,
) -> None:
    """Print and write the result; write nothing if the chosen schedule misses a time budget."""
    with console.status("measuring on the second half"):
        result = run.judge_front(trials, count) if run.gmacs is None else run.choose(trials, count)
    images = run.first.count + run.second.count
    title = f"{run.inputs.name}, {len(trials)} trials, {images} images in two halves"
    if run.gmacs is not None:
        title += f", {run.gmacs:.3f} GMACs"
    print_table(console, comparison_table(title, result))
    if isinstance(result, Choice):
        for line in choice_remarks(result, len(trials)):
            console.print(line)
        chosen = result.chosen
        if time is not None:
            timed = run.time(chosen.schedule)
            console.print(f"measured in turn at batch {run.inputs.batch} on {run.inputs.device}: "
                          f"{timed}")  # fmt: skip
            time.check(timed, "no schedule was written, the finished trials are kept")
        console.print(f"chosen: {chosen.name}: {_describe(chosen.schedule)}")
        results = {targets.out: replace(chosen, name="search")}
    else:
        console.print(
            "The front was found on the first half: trust the second, which was not used to find "
            "it. Differences are paired, on the second half, ± standard errors."
        )
        stem = targets.out.stem
        results = {
            targets.out.with_stem(f"{stem}-{row.gmacs:.3f}-{row.name.replace(' ', '-')}"): row
            for row in result.rows
        }
    for path, judged in results.items():
        judged.schedule.save(path)
        print_path(console, "written", path)
    if targets.figure is not None:
        save(search_figure(trials, result, title), targets.figure)
    if targets.csv is not None:
        records.append(targets.csv, run.rows([*result.references, *results.values()]))


def comparison_table(title: str, comparison: Comparison) -> Table:
    """Show both halves of every row, and paired differences on the second.

    If none is chosen, the rows are a front and differ in cost.
    """
    unpruned, default, chosen = comparison.unpruned, comparison.default, comparison.chosen
    labeled = unpruned.second.hits is not None
    measure = "top-1 %" if labeled else "KL"
    columns: dict[str, Callable[[Judged], str]] = {}
    if chosen is None:
        columns["GMACs"] = lambda row: f"{row.gmacs:.3f}"
    columns[f"{measure}\n1st half"] = lambda row: _value(row.first)
    columns[f"{measure}\n2nd half"] = lambda row: _value(row.second)
    if labeled:  # the KL of the unpruned model is zero: KL is the difference
        columns["to\nunpruned"] = lambda row: "" if row is unpruned else _change(row, unpruned)
    if default is not None:
        columns[f"to the\n{default.name}"] = lambda row: (
            "" if row in (unpruned, default) else _change(row, default)
        )
    if labeled:
        columns["KL"] = lambda row: f"{row.second.mean_kl:.2f}"
    columns["same %"] = lambda row: f"{row.second.agreement:.1f}"
    table = new_table(title, gap=0)
    table.add_column("schedule", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in [*comparison.references, *comparison.rows]:
        name, style = (f"→ {row.name}", "bold") if row is chosen else (row.name, None)
        table.add_row(name, *(cell(row) for cell in columns.values()), style=style)
    return table


def _value(outcome: Outcome) -> str:
    mean, error = Mean.of(outcome.scores)
    return f"{abs(mean):.3f} ± {error:.3f}" if outcome.hits is None else f"{mean:.1f} ± {error:.1f}"


def _change(row: Judged, reference: Judged) -> str:
    mean, error = paired_gain(row.second, reference.second)
    if row.second.hits is None:
        return f"{-mean:+.3f} ± {error:.3f}"  # like KL itself: less is better
    return f"{mean:+.1f} ± {error:.1f}"


def choice_remarks(choice: Choice, trials: int) -> list[str]:
    """List what a reader should know before trusting the table."""
    points = choice.chosen.second.hits is not None
    unit, digits = (" points", 2) if points else (" of KL", 4)
    count, images = len(choice.rows), len(choice.chosen.second.kl)
    ties = "; ties are broken by KL" if points else ""
    also = "" if choice.default is None else f" and the {choice.default.name}"
    lines = [
        f"Ranked on the first half; the best {count}{also} were compared on the second, {images} "
        f"images that were not used for the ranking{ties}. Differences are paired; they, KL "
        "(unpruned ‖ pruned, less is better) and same (equal top-1 predictions) are of the second "
        "half. ± is the standard error.",
        "Winner's curse: the best of many looks better than it is on the images it was chosen "
        f"on. Relative to the unpruned model, the best {count} of {trials} trials were "
        f"{abs(choice.lost):.{digits}f}{unit} {'better' if choice.lost >= 0 else 'worse'} on the "
        f"first half than on the second. Of the chosen one's result on the second half, about "
        f"{choice.luck:.{digits}f}{unit} are luck (bootstrap).",
    ]
    if choice.default is not None and choice.chosen is not choice.default:
        mean, error = paired_gain(choice.chosen.second, choice.default.second)
        if mean < 2 * error:
            lines.append(
                f"Inconclusive: on {images} images, the chosen one is within two standard errors "
                f"of the {choice.default.name}."
            )
    return lines


def _describe(schedule: Schedule) -> str:
    """List the stages, as `zerotprune info` does."""
    stages = [
        f"after block {stage.block}: keep {stage.keep:g}"
        + (f", similar {stage.similar}" if stage.similar else "")
        + (f", rounds {stage.rounds}" if stage.rounds is not None else "")
        for stage in schedule.stages
    ]
    return "; ".join(stages) or "no stages"
