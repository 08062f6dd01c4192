"""`zerotprune search`: the best schedule for a budget, on one's own model and images."""

from __future__ import annotations

from pathlib import Path

from optuna.trial import FrozenTrial
from rich.console import Console

from ..backbones import backbone
from ..budgets import Budget
from ..budgets.speed import TimeBudget
from ..calibrate.calibration import Calibration, check_used
from ..data.images import check_classes
from ..data.models import load
from ..method import Method
from ..methods import DEFAULT, name_of, names, resolve
from ..schedule import Schedule
from ..search.session import SearchInputs, prepare_search
from ..search.storage import StudyLocation, set_once
from ..search.study import SamplerName, SearchConfig, best_so_far, read_trials
from ..surgery import restore_
from .console import progress_bar
from .options import (
    BatchOptions,
    BudgetOptions,
    ModelOptions,
    Precision,
    chosen_device,
    refuse_torchrun,
)
from .report_search import ReportTargets, report


def search(
    model: str,
    data: str,
    *,
    budget: BudgetOptions | None = None,
    method: str = DEFAULT,
    labels: bool = True,
    loading: ModelOptions | None = None,
    reading: BatchOptions | None = None,
    precision: Precision = "float32",
    calibration: Path | None = None,
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

    Example: `zerotprune search deit_small_patch16_224 images --cost 0.6 --trials 1000`

    Parameters
    ----------
    model
        `demo`, the name of a timm model, or another library's with its prefix: torchvision:NAME.
    data
        A folder of class folders, a flat folder with --mapping, tar shards, or hf:DATASET.
    method
        One that acts by a stage's keep, similar and rounds, or by counts alone, as fold does; or
        FILE.py:CLASS.
    labels
        Search by top-1 on the labels; without them, by KL(unpruned ‖ pruned) of the outputs.
    precision
        Of the model; scores are float32 in any case.
    calibration
        The VHF range to search with: what `calibrate` wrote.
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
        and what the budget gives without a search, which stays where nothing better was found.
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
    budget, loading = budget or BudgetOptions(), loading or ModelOptions()
    reading = reading or BatchOptions()
    if workers < 1:
        raise ValueError(f"a search needs at least 1 of --workers, got {workers}")
    limits = _limits(budget, sampler)
    targets = ReportTargets(out, figure, csv)
    targets.check()
    location = StudyLocation(storage or str(out.with_suffix(".trials.db")), study)
    location.check()
    console = Console(highlight=False)
    with console.status("reading model and images, measuring where the budget is a time"):
        chosen, device = _searchable(method), chosen_device(loading.device)
        loaded = load(**loading.named(model))
        if calibration is not None:
            check_used([chosen])
            calibrated = Calibration.load_for(calibration, model, loaded)
            chosen = calibrated.applied(Schedule((), chosen)).method
        images = reading.open(data, loaded, loading.size, labelled=labels)
        classes = backbone(loaded).outputs
        if labels and classes:
            check_classes(images, classes)
        inputs = SearchInputs(model, loading.named(model), loaded, chosen, images, data, labels,
                              reading.batch, device, precision, seed, reading.strict)  # fmt: skip
        run = prepare_search(inputs, limits, location, workers=workers, memory=1e9 * cache_gb,
                             say=console.print)  # fmt: skip
    config = SearchConfig(trials, run.gmacs, inputs.measure, sampler, seed)
    # Trials that are there already count, whoever drew them.
    begun_by = set_once(run.study, "sampler", sampler)
    if earlier := len(read_trials(run.study, config)):
        by = "" if begun_by == sampler else f", begun by --sampler {begun_by}"
        console.print(f"{earlier} trials of {trials} are there already{by}", style="yellow")
    with progress_bar(console) as progress:
        bar = progress.add_task("searching", total=trials, note="")

        def advance(finished: list[FrozenTrial]) -> None:
            best = best_so_far(finished, config)
            note = "" if best is None else f"best so far {best}"
            progress.update(bar, completed=len(finished), note=note)

        whole = run.explore(config, workers, advance)
    finished = read_trials(run.study, config)
    if not whole:
        console.print(f"stopped after {len(finished)} of {trials} trials: the same command goes on "
                      "from there", style="yellow")  # fmt: skip
    if finished:
        report(run, finished, finalists, budget.time, targets, console)
    restore_(loaded)
    if not whole:
        raise KeyboardInterrupt


def _limits(budget: BudgetOptions, sampler: SamplerName) -> Budget | TimeBudget | None:
    refuse_torchrun("a search has its own --workers")
    if budget.schedule is not None or budget.tuned:
        raise ValueError("a search finds a schedule: give it a budget, not --schedule or --tuned")
    if sampler == "nsga2" and budget.given:
        raise ValueError("nsga2 searches all budgets at once: give it none")
    if sampler != "nsga2" and len(budget.given) != 1:
        raise ValueError("give one budget: --cost, --gmacs, --speedup or --latency-ms")
    budget.check()
    if not budget.given:
        return None
    return budget.time or Budget(budget.cost, budget.gmacs)


def _searchable(name: str) -> Method:
    method = resolve(name)
    if not method.searchable:
        searchable = ", ".join(each for each in names() if resolve(each).searchable)
        raise ValueError(f"a search is for one of {searchable}, got {name_of(method)}")
    return method
