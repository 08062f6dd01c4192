"""`zerotprune search`: the best schedule for a budget, on one's own model and images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import check_writable
from ..measure import records
from ..plots import figures
from ..pruning import restore_
from ..search.budget import SearchBudget
from ..search.config import SamplerName, SearchConfig
from ..search.session import SearchRun, prepare
from ..search.storage import StudyLocation, check_location, write_note_once
from ..search.study import TrialLog, read_trials
from .report_search import ReportTargets, report_choice, report_front
from .search_options import SearchOptions


def search(
    options: SearchOptions,
    budget: Annotated[SearchBudget | None, Parameter(name="*")] = None,
    *,
    out: Path = Path("schedule.json"),
    trials: int = 200,
    sampler: SamplerName = "random",
    finalists: int = 8,
    workers: int = 1,
    storage: str | None = None,
    study: str = "search",
    figure: Path | None = None,
    csv: Path | None = None,
    cache_gb: float = 4.0,
    seed: int = 0,
) -> None:
    """Find the best schedule for a budget by Monte-Carlo search, and write it as JSON.

    The same command again goes on where it was stopped or killed. Ctrl-C ends it with the best so
    far, and exit code 130.

    Parameters
    ----------
    out
        The schedule, for --schedule of other commands. With nsga2, a file for each schedule that
        is shown of the front, with its GMACs in the name.
    trials
        Schedules to try: the exact total over all workers and resumptions.
    sampler
        random; tpe, which learns from earlier trials; or nsga2 for the whole accuracy–cost front,
        without a budget.
    finalists
        So many of the best on the first half of the images; the second half chooses among them
        and a schedule of the paper's form, which stays where nothing better was found.
    workers
        Processes on this machine. More machines: the same command there with the same --storage.
    storage
        A file for the trials, or an Optuna URL (postgresql+psycopg://…). Default: beside --out.
    study
        Its name in the storage.
    figure
        Draw all trials and the chosen one here.
    csv
        Append the rows of the final table to this file.
    cache_gb
        Memory for what the blocks before the first stage compute, which all trials share.
    seed
        Of the sampler and of the halves.
    """
    location = StudyLocation(storage or str(out.with_suffix(".trials.db")), study)
    budget, targets = budget or SearchBudget(), ReportTargets(out, figure, csv)
    _check_numbers(trials=trials, finalists=finalists, workers=workers, batch=options.batch)
    _check_budget(budget, sampler)
    _check_files(targets, location)
    if not cache_gb >= 0:
        raise ValueError(f"--cache-gb must be 0 or more, got {cache_gb}")
    console = Console(highlight=False)
    with console.status("reading model and images, measuring where the budget is a time"):
        run = prepare(options.load_inputs(seed), budget, location, workers=workers,
                      memory=1e9 * cache_gb, say=console.print)  # fmt: skip
    config = SearchConfig(trials, run.gmacs, run.inputs.measure, sampler, seed)
    _tell_of_earlier(run, config, console)
    with _progress_bar(console, config) as advance:
        whole = run.explore(config, workers, advance)
    finished = read_trials(run.study, config)
    if not whole:
        console.print(f"stopped after {len(finished)} of {trials} trials: the same command goes on "
                      "from there", style="yellow")  # fmt: skip
    if finished and config.budget is None:
        report_front(run, finished, finalists, targets, console)
    elif finished:
        report_choice(run, finished, finalists, budget, targets, console)
    restore_(run.inputs.model)
    if not whole:
        raise KeyboardInterrupt


def _tell_of_earlier(run: SearchRun, config: SearchConfig, console: Console) -> None:
    """Trials that are there already count, whoever drew them."""
    first = write_note_once(run.study, "sampler", config.sampler)
    earlier = len(read_trials(run.study, config))
    if earlier:
        drawn = "" if first == config.sampler else f", begun by --sampler {first}"
        console.print(f"{earlier} trials of {config.trials} are there already{drawn}",
                      style="yellow")  # fmt: skip


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def _check_budget(budget: SearchBudget, sampler: SamplerName) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a search has its own --workers: start it without torchrun")
    if sampler == "nsga2" and budget.given:
        raise ValueError("nsga2 searches all budgets at once: give it none")
    if sampler != "nsga2" and len(budget.given) != 1:
        raise ValueError("give one budget: --gmacs, --keep, --speedup or --latency-ms")
    budget.check()


def _check_files(targets: ReportTargets, location: StudyLocation) -> None:
    check_writable(targets.out)
    if targets.figure is not None:
        figures.check_target(targets.figure)
    if targets.csv is not None:
        records.check_target(targets.csv)
    check_location(location)


@contextmanager
def _progress_bar(console: Console, config: SearchConfig) -> Iterator[Callable[[TrialLog], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("searching", total=config.trials, note="")

        def advance(log: TrialLog) -> None:
            best, note = log.best(), ""
            if best is not None:
                value = f"{best:.2f} %" if config.measure == "top1" else f"KL {best:.4f}"
                note = f"best so far {value}"
            progress.update(bar, completed=len(log.trials), note=note)

        yield advance
