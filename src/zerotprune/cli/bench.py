"""`zerotprune bench`: speed in every mode, beside the compiled unpruned model and the limit."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from cyclopts import Parameter
from torch import nn

from ..cost import Compute
from ..data.models import load
from ..grid import Outputs
from ..interrupts import acknowledge
from ..measure import records
from ..measure import speed as core
from ..measure.modes import MODES, Mode
from ..measure.speed import Entrant, Precision, Setup
from ..methods import DEFAULT, name_of, resolve
from ..plots.figures import check_figure_file, save
from ..scoring.backends import Backend
from .console import console_for
from .evaluation import Evaluation, ProbeOptions, prepare
from .options import (
    DATA,
    BudgetOptions,
    BudgetsOptions,
    DataOptions,
    Flag,  # noqa: F401  cyclopts reads the options of DataOptions by the names of this module
    ModelOptions,
    ReadingOptions,
    Several,
    chosen_device,
    refuse_torchrun,
)
from .report_speed import Accuracy, plot_of, remarks, rows_of, table_of

COST = 0.65
METHODS = (DEFAULT, "zero-tprune", "tome")


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class AccuracyOptions(DataOptions):
    """The images for an accuracy beside the speed."""

    data: str | None = None
    "Images to measure accuracy on in the same run: a folder, tar shards, or hf:DATASET."
    workers: int = 2
    "Processes that decode images."

    def reading(self) -> ReadingOptions:
        return ReadingOptions(
            self.mapping, self.split, self.limit, self.strict, workers=self.workers
        )


def bench(
    model: str,
    *,
    budget: BudgetsOptions | None = None,
    method: Several[str] = None,
    loading: ModelOptions | None = None,
    measuring: AccuracyOptions | None = None,
    probing: ProbeOptions | None = None,
    batch: Several[int] = None,
    precision: Several[Precision] = None,
    mode: Several[Mode] = None,
    rounds: int = 20,
    compute: Compute = "needed",
    backend: Backend = "auto",
    outputs: Outputs = "tokens",
    threads: int | None = None,
    csv: Path | None = None,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Images per second, latency and memory of pruned and unpruned models, measured in turn.

    Beside the methods stand the unpruned model and slicing: the same numbers of tokens with nothing
    computed to choose them, the limit of what any method can reach. Several costs are measured one
    after the other.

    Example: `zerotprune bench deit_small_patch16_224 --random-weights --cost 0.6 --batch 1 64`

    Parameters
    ----------
    model
        `demo`, the name of a timm model, or another library's with its prefix: torchvision:NAME.
    method
        Which methods, all at the cost of the first; default fold, zero-tprune and tome.
    batch
        Batch sizes; default 1 and 8 on a CPU, 1, 8, 64, 256 and 512 on a GPU.
    precision
        float32, bfloat16, float16; default float32 on a CPU, bfloat16 on a GPU.
    mode
        eager, compile (torch.compile as one graph), graph (that, as a CUDA graph); default all.
    rounds
        Samples of every case.
    compute
        needed, or all: whether to compute what nobody reads, see `prune_`.
    backend
        What computes the scores: see `prune_`.
    outputs
        tokens, or grid: whether a vector for every patch comes out, see `prune_`.
    threads
        Threads of the CPU.
    csv
        Append the rows to this file.
    plot
        Draw speed-up against batch size: PNG, SVG or PDF by the file's ending.
    json
        Print the rows as JSON, for scripts; all else goes to the error stream.
    """
    loading, measuring = loading or ModelOptions(), measuring or AccuracyOptions()
    budgets = (budget or BudgetsOptions()).each()
    if not budgets[0].given:
        budgets = [replace(budgets[0], cost=COST)]
    names = list(dict.fromkeys(name_of(resolve(name)) for name in method or METHODS))
    _check(budgets, csv, plot)
    device = chosen_device(loading.device)
    gpu = device.startswith("cuda")
    modes = tuple(dict.fromkeys(mode or (MODES if gpu else MODES[:2])))
    setup = Setup(device, modes, rounds, compute, backend, outputs=outputs)
    setup.check()
    _use_threads(threads, gpu)
    console = console_for(json)
    evaluation = None
    if measuring.data is not None:
        evaluation = prepare(model, measuring.data, loading, measuring.reading(),
                             probing or ProbeOptions(), json=json)  # fmt: skip
        built, images = evaluation.model, evaluation.some_images()
    else:
        built = load(**loading.named(model)).to(device)
        images = core.noise(built, 8, device, torch.float32)
    batches = list(dict.fromkeys(batch or ([1, 8, 64, 256, 512] if gpu else [1, 8])))
    usual: Precision = "bfloat16" if gpu else "float32"
    precisions = list(dict.fromkeys(precision or [usual]))
    # All cost what the first of the methods does whose cost is known before an image is seen.
    static = [name for name in method or METHODS if not resolve(name).adaptive] or [DEFAULT]
    timed = _as_measured(built, precisions[0], modes) if budgets[0].time else built
    about = {"model": records.shown(model), "threads": "" if gpu else torch.get_num_threads()}
    options = {"compute": compute, "backend": backend}
    schedules = [
        each.solve(
            timed,
            None if each.schedule is not None and method is None else static[0],
            lambda: core.noise(built, batches[0], device, getattr(torch, precisions[0])),
            console.print,
        )
        for each in budgets
    ]
    rows: list[dict[str, object]] = []
    for schedule in schedules:
        assert schedule is not None
        with console.status("setting every method to the same cost") as status:
            entered = core.entrants(built, schedule, names, images, outputs)
            groups = list(core.sweep(built, entered, precisions, batches, setup, status.update))
        whole = len(groups) == len(batches) * len(precisions) and groups[-1].whole
        accuracy = _accuracy(evaluation, entered, precisions, setup) if evaluation and whole else {}
        measured = [row for group in groups for row in
                    rows_of(group, about, options, measuring.data, accuracy)]  # fmt: skip
        rows += measured
        if csv is not None:
            records.append(csv, measured)
        if not json:
            for group in groups:
                console.print(table_of(group, model, accuracy))
            for line in remarks(groups, accuracy, measuring.data, whole):
                console.print(line, style="dim", highlight=False)
        whole = whole and (evaluation is None or len(accuracy) == len(precisions))
        if not whole:
            break
    if json:
        print(jsonlib.dumps([{**records.surroundings(), **row} for row in rows], indent=2))
    if plot is not None:
        save(plot_of(groups, model), plot)
    if not whole:
        raise KeyboardInterrupt("stopped: what is told is of whole rounds alone")


def _check(budgets: Sequence[BudgetOptions], csv: Path | None, plot: Path | None) -> None:
    refuse_torchrun("bench measures one process")
    for budget in budgets:
        budget.check()
    if csv is not None:
        records.check_rows_fit(csv)
    if plot is not None:
        check_figure_file(plot)
        if len(budgets) > 1:
            raise ValueError(f"--plot draws one cost, got {len(budgets)}: give one --cost")


def _as_measured(model: nn.Module, precision: Precision, modes: Sequence[Mode]) -> nn.Module:
    """Return the model in the first precision, compiled unless it runs eagerly as well: a budget in
    time is met by the model as it is."""
    cast = deepcopy(model).to(getattr(torch, precision))
    if "eager" in modes:
        return cast
    compiled: nn.Module = torch.compile(cast, fullgraph=True, dynamic=False)  # type: ignore[assignment]
    return compiled


def _use_threads(threads: int | None, gpu: bool) -> None:
    if threads is None:
        return
    if gpu:
        raise ValueError("--threads is for a CPU: the model runs on a GPU here")
    torch.set_num_threads(threads)


def _accuracy(
    evaluation: Evaluation,
    entered: Sequence[Entrant],
    precisions: Sequence[Precision],
    setup: Setup,
) -> Accuracy:
    """Of every entrant in every precision; stopped by Ctrl-C, of those that are finished."""
    contenders = [entrant.contender for entrant in entered if not entrant.failure]
    measured: Accuracy = {}
    for precision in precisions:
        dtype: torch.dtype = getattr(torch, precision)
        setting = replace(evaluation.setting, precision=dtype, compute=setup.compute,
                          backend=setup.backend, outputs=setup.outputs)  # fmt: skip
        model = deepcopy(evaluation.model).to(dtype)
        try:
            measured[precision] = replace(evaluation, model=model, setting=setting).run(contenders)
        except KeyboardInterrupt:
            acknowledge()
            break
    return measured
