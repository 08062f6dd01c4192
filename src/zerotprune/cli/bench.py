"""`zerotprune bench`: speed in every mode, beside the compiled unpruned model and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from cyclopts import Parameter
from matplotlib.figure import Figure
from rich.table import Table

from ..cost import Compute
from ..data.models import saved_with
from ..measure import records
from ..measure import speed as core
from ..measure.evaluation import measure_accuracy
from ..measure.speed import (
    LIMIT,
    MODES,
    Accuracy,
    Group,
    Mode,
    Setup,
    Speed,
    results_of,
)
from ..methods import DEFAULT, name_of, resolve
from ..plots.comparison import Pace, speed_figure
from ..plots.figures import save
from ..safety.ranges import RANGES
from ..scoring.scorer import Backend
from ..shapes import Precision
from ..tokens import Outputs
from .console import (
    INCONCLUSIVE,
    INCONCLUSIVE_REMARK,
    console_for,
    new_table,
    print_json,
    print_table,
    showing,
    speedup_cell,
)
from .evaluation import ProbeOptions, prepare_evaluation
from .options import (
    DATA,
    BatchCount,
    BudgetsOptions,
    CsvFile,
    DataOptions,
    FigureFile,
    InputName,
    JsonFlag,
    ModelName,
    ModelOptions,
    ReadingOptions,
    Several,
    Threads,
    Workers,
    refuse_torchrun,
    refuse_without,
    resolve_device,
)

COST = 0.65
METHODS = (DEFAULT, "zero-tprune", "tome")


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class AccuracyOptions(DataOptions):
    """The images for an accuracy beside the speed."""

    data: InputName | None = None
    "Images to measure accuracy on in the same run: a folder, tar shards, or hf:DATASET."
    workers: Workers = 2
    "Processes that decode images."

    def reading(self) -> ReadingOptions:
        return ReadingOptions(
            self.mapping, self.split, self.limit, self.strict, workers=self.workers
        )


def bench(
    model: ModelName,
    *,
    budget: BudgetsOptions = BudgetsOptions(),
    method: Several[InputName] = None,
    loading: ModelOptions = ModelOptions(),
    measuring: AccuracyOptions = AccuracyOptions(),
    probing: ProbeOptions = ProbeOptions(),
    batch: Several[BatchCount] = None,
    precision: Several[Precision] = None,
    mode: Several[Mode] = None,
    rounds: Annotated[int, RANGES["rounds"]] = 20,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs | None = None,
    threads: Threads | None = None,
    csv: CsvFile = None,
    plot: FigureFile = None,
    json: JsonFlag = False,
) -> None:
    """Measure images per second, latency and memory of pruned and unpruned models, in turn.

    The unpruned model and slicing are measured beside the methods. Slicing keeps the same numbers
    of tokens and computes nothing to choose them: the limit of what any method can reach. Several
    costs are measured one after the other. Without a budget, a saved model is measured as it was
    saved, and any other at a cost of 0.65.

    Example: `zerotprune bench deit_small_patch16_224 --random-weights --cost 0.6 --batch 1 64`

    Parameters
    ----------
    method
        Which methods, all at the cost of the first; default fold, zero-tprune and tome, and that of
        a --schedule.
    batch
        Batch sizes; default 1 and 8 on a CPU, 1, 8, 64, 256 and 512 on a GPU.
    precision
        float32, bfloat16, float16; default float32 on a CPU, bfloat16 on a GPU.
    mode
        eager, compile (torch.compile as one graph), graph (that, as a CUDA graph); default all.
    rounds
        Samples of every case.
    compute
        needed, or all: whether to compute what is never read, see `prune_`.
    backend
        What computes the scores: see `prune_`.
    outputs
        tokens, or grid: whether a vector for every patch comes out, see `prune_`; default tokens,
        or as the model was saved.
    threads
        Threads of the CPU.
    plot
        Draw speedup against batch size: PNG, SVG or PDF by the file's ending.
    """
    refuse_torchrun("bench measures one process")
    budgets = budget.split()
    if plot is not None and len(budgets) > 1:
        raise ValueError(f"--plot draws one cost, got {len(budgets)}: give one --cost")
    if measuring.data is None:
        refuse_without("--data", measuring, probing)
    chosen = [resolve(name) for name in method or METHODS]
    if budgets[0].schedule is not None and method is None:
        chosen = [budgets[0].acting(None), *chosen]
    device = resolve_device(loading.device)
    gpu = device.startswith("cuda")
    modes = tuple(dict.fromkeys(mode or (MODES if gpu else MODES[:2])))
    setup = Setup(device, modes, rounds, compute, backend, outputs=outputs or "tokens")
    setup.check()
    _use_threads(threads, gpu)
    console = console_for(json)
    evaluation = None
    if measuring.data is not None:
        reading = measuring.reading()
        evaluation = prepare_evaluation(model, measuring.data, loading, reading, probing, json=json)
        built, images = evaluation.model, evaluation.some_images()
    else:
        built = loading.load(model).to(device)
        images = core.noise(built, 8, device, torch.float32)
    users_method = next((name for name in method or () if ".py:" in name), None)
    saved = None if budgets[0].options else saved_with(built, users_method)
    if saved is not None:
        setup = replace(setup, outputs=outputs or saved.outputs)
        chosen = chosen if method else [saved.schedule.method, *chosen]
    elif not budgets[0].options:
        budgets = [replace(budgets[0], cost=COST)]
    names = list(dict.fromkeys(map(name_of, chosen)))
    batches = list(dict.fromkeys(batch or ([1, 8, 64, 256, 512] if gpu else [1, 8])))
    usual: Precision = "bfloat16" if gpu else "float32"
    precisions = list(dict.fromkeys(precision or [usual]))
    # All get the cost of the first method whose cost does not depend on the images.
    static = [name for name in method or METHODS if not resolve(name).adaptive] or [DEFAULT]
    timed = core.as_measured(built, precisions[0], modes) if budgets[0].time else built
    hardware = records.hardware(device)
    about = {
        "model": records.shorten_path(model),
        "hardware": hardware,
        "threads": "" if gpu else torch.get_num_threads(),
    }
    options = {"compute": compute, "backend": backend}
    first = static[0] if saved is None else users_method
    schedules = [
        one.solve(
            timed,
            None if one.schedule is not None and method is None else first,
            lambda: core.noise(built, batches[0], device, getattr(torch, precisions[0])),
            console.print,
        )
        for one in budgets
    ]
    rows: list[dict[str, object]] = []
    for schedule in schedules:
        assert schedule is not None
        with showing(console, "setting every method to the same cost") as show:
            cases = core.entrants(built, schedule, names, images, setup.outputs)
            groups = list(core.sweep(built, cases, precisions, batches, setup, show))
        whole = len(groups) == len(batches) * len(precisions) and groups[-1].whole
        accuracy: Accuracy = {}
        if evaluation is not None and whole:
            accuracy = measure_accuracy(evaluation, cases, precisions, setup)
        measured = [
            row
            for group in groups
            for row in records.speed_rows(group, about, options, measuring.data, accuracy)
        ]
        rows += measured
        if csv is not None:
            records.append(csv, measured)
        if not json:
            for group in groups:
                print_table(console, speed_table(group, model, hardware, accuracy))
            for line in remarks(groups, accuracy, measuring.data, whole):
                console.print(line, style="dim")
        whole = whole and (evaluation is None or len(accuracy) == len(precisions))
        if not whole:
            break
    if json:
        print_json(rows)
    if plot is not None:
        save(_plot(groups, model, hardware), plot)
    if not whole:
        raise KeyboardInterrupt("stopped: only finished rounds count")


def _use_threads(threads: int | None, gpu: bool) -> None:
    if threads is None:
        return
    if gpu:
        raise ValueError("--threads is for a CPU: the model runs on a GPU here")
    torch.set_num_threads(threads)


def _plot(groups: Sequence[Group], model: str, hardware: str) -> Figure:
    """Plot speedup against batch size."""
    paces = [
        Pace(speed.name, speed.mode, speed.precision, speed.batch, speedup)
        for group in groups
        for speed in group.speeds
        if (speedup := group.speedup(speed)) is not None
    ]
    if not paces:
        raise ValueError("nothing to draw: the unpruned model could not be measured")
    base = f"the unpruned model ({groups[0].base})"
    return speed_figure(paces, LIMIT, base, f"{model}, {hardware}")


def speed_table(group: Group, model: str, hardware: str, accuracy: Accuracy) -> Table:
    """Return a table with a row for each case, or the reason why it was not measured."""
    first = group.speeds[0]
    table = new_table(f"{model}, batch {first.batch}, {first.precision}, {hardware}")
    modes = len({speed.mode for speed in group.speeds})
    gpu = any(speed.peak_memory for speed in group.speeds)
    failed = any(speed.failure for speed in group.speeds)
    columns = ["GMACs", "images/s", "ms", "spread", "speedup", "of limit"]
    columns += ["MiB"] * gpu + ["top-1 %", "change"] * bool(accuracy)
    table.add_column("method", overflow="fold")
    table.add_column("mode", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    if failed:
        table.add_column("not measured because", overflow="fold")
    for number, speed in enumerate(group.speeds, start=1):
        last = number % modes == 0 and modes > 1
        cells = _cells(speed, group, gpu, accuracy) + [speed.failure] * failed
        table.add_row(*cells, end_section=last, style="bold" if speed.name == DEFAULT else None)
    return table


def _cells(speed: Speed, group: Group, gpu: bool, accuracy: Accuracy) -> list[str]:
    cells = [speed.name, speed.mode, f"{speed.entrant.gmacs:.3f}" if speed.entrant.gmacs else ""]
    if speed.seconds:
        speedup = speedup_cell(group.speedup(speed), group.speedup_range(speed))
        share = group.of_limit(speed)
        cells += [
            f"{speed.images_per_second:.{0 if speed.images_per_second >= 100 else 1}f}",
            f"{1e3 * speed.latency:.3f}",
            f"{1e3 * speed.seconds.spread:.3f}",
            speedup,
            "" if share is None or speedup.startswith(INCONCLUSIVE) else f"{100 * share:.0f} %",
        ]
        cells += [f"{speed.peak_memory / 2**20:.0f}"] * gpu
    else:
        cells += [""] * (5 + gpu)
    if accuracy:
        results = results_of(speed, accuracy)
        if results is None:
            return [*cells, "", ""]
        result, unpruned = results
        cells += [f"{result.top1:.2f}", "{:+.2f} ± {:.2f}".format(*result.change(unpruned))]
    return cells


def remarks(
    groups: Sequence[Group], accuracy: Accuracy, data: str | None, whole: bool
) -> list[str]:
    """List what a reader of the tables should know."""
    lines = [
        f"Speedup: over the unpruned model ({groups[0].base}). Of limit: share of the speed of "
        "slicing in the same mode, which keeps as many tokens and chooses none.",
        "ms: median of one call; spread: between its quartiles.",
    ]
    cells = [speedup_cell(group.speedup(speed), group.speedup_range(speed))
             for group in groups for speed in group.speeds]  # fmt: skip
    if any(cell.startswith(INCONCLUSIVE) for cell in cells):
        lines.append(f"{INCONCLUSIVE_REMARK} Try more --rounds, or a quiet machine.")
    if not whole:
        lines.append("Stopped: only finished rounds count.")
    if accuracy:
        results = next(iter(accuracy.values()))
        lines.append(f"Accuracy: {len(results[0].hits)} images, change with paired error.")
    else:
        lines.append(f"accuracy not measured: {'give --data' if data is None else 'stopped'}")
    return lines
