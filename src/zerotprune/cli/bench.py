"""`zerotprune bench`: speed in every mode, beside the compiled unpruned model and the limit."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from cyclopts import Parameter
from rich.console import Console
from torch import Tensor, nn

from ..data.models import load
from ..measure import records
from ..measure import speed as core
from ..measure.modes import MODES, Mode
from ..measure.probe import Probe
from ..measure.speed import OURS, Entrant, Precision, Setup
from ..plots.figures import check_target, save
from ..schedule import Schedule
from .arguments import preset_or_file, read_schedule
from .session import Session, Source, start
from .speeds import Accuracy, plot_of, remarks, rows_of, table_of
from .subject import chosen_device

Item = TypeVar("Item")
Several = Annotated[list[Item] | None, Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class Subject:
    """Which model, and the pictures for its accuracy."""

    model: str
    "`demo` or the name of a timm model."
    weights: Path | None = None
    "Local weights: safetensors, or a pickle of tensors alone. Default: timm's pretrained ones."
    random_weights: bool = False
    "Random weights instead: they are as quick as any."
    size: int | None = None
    "Side of the pictures in pixels, if not the model's own."
    data: str | None = None
    "Pictures to measure accuracy on in the same run: a folder, tar shards, or hf:DATASET."
    mapping: Path | None = None
    "For a flat folder: a file with lines `picture label`."
    split: str = "validation"
    "Of a Hugging Face dataset."
    limit: int | None = None
    "Take only so many pictures, spread evenly over the data."
    strict: bool = False
    "Stop at the first picture that cannot be read; else it is named and left out."
    probe: Probe | None = None
    "For a model without a head: nearest neighbours (`knn`) or a `linear` probe …"
    train: str | None = None
    "… learned on these pictures."
    workers: int = 2
    "Processes that decode pictures."
    device: str = "auto"
    "cpu, cuda, or auto: cuda where there is one."

    def source(self) -> Source | None:
        if self.data is None:
            return None
        return Source(
            model=self.model, data=self.data, weights=self.weights, mapping=self.mapping,
            split=self.split, size=self.size, limit=self.limit, strict=self.strict,
            probe=self.probe, train=self.train, workers=self.workers, device=self.device,
        )  # fmt: skip

    def check(self) -> None:
        if self.weights is not None and self.random_weights:
            raise ValueError("give --weights or --random-weights, not both")
        if self.data is not None and self.random_weights:
            raise ValueError("random weights have no accuracy: give --data or --random-weights")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("bench measures one process: start it without torchrun")


def bench(
    subject: Subject,
    *,
    schedule: str | None = None,
    gmacs: float | None = None,
    keep: float | None = None,
    methods: Several[str] = None,
    batch: Several[int] = None,
    precision: Several[Precision] = None,
    mode: Several[Mode] = None,
    rounds: int = 20,
    compute: Literal["needed", "all"] = "needed",
    backend: Literal["auto", "reference", "triton"] = "auto",
    threads: int | None = None,
    csv: Path | None = None,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Images per second, latency and memory of pruned and unpruned models, measured in turn.

    Beside the methods stand the unpruned model and slicing: the same numbers of tokens with nothing
    computed to choose them, the limit of what any method can reach.

    Parameters
    ----------
    schedule
        A preset of the paper (ablation-is, zero-tp-a, …) or a JSON file.
    gmacs
        Set the methods to this budget.
    keep
        Set the methods to this share of the unpruned cost; the default is 0.65.
    methods
        Which methods; default zero-tprune, tome and ats.
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
    threads
        Threads of the CPU.
    csv
        Append the rows to this file.
    plot
        Draw speed-up against batch size: PNG, SVG or PDF by the file's ending.
    json
        Print the rows as JSON, for scripts; all else goes to the error stream.
    """
    subject.check()
    device = chosen_device(subject.device)
    gpu = device.startswith("cuda")
    modes = tuple(dict.fromkeys(mode or (MODES if gpu else MODES[:2])))
    setup = Setup(device, modes, rounds, {"compute": compute, "backend": backend})
    setup.check()
    names = methods or [OURS, "tome", "ats"]
    core.check_names(names)
    if schedule is None and gmacs is None and keep is None:
        keep = 0.65
    _check(batch or [], [schedule, gmacs, keep], csv, plot)
    _use_threads(threads, gpu)
    console = Console(file=sys.stderr if json else None)

    session, model = _loaded(subject, device, quiet=json)
    chosen = _schedule(model, schedule, gmacs, keep)
    images = _images(session, model, device)
    with console.status("setting every method to the same cost") as status:
        entered = core.entrants(model, chosen, names, images, setup.options)
        batches = list(dict.fromkeys(batch or ([1, 8, 64, 256, 512] if gpu else [1, 8])))
        usual: Precision = "bfloat16" if gpu else "float32"
        precisions = list(dict.fromkeys(precision or [usual]))
        groups = list(core.sweep(model, entered, precisions, batches, setup, status.update))
    whole = len(groups) == len(batches) * len(precisions) and groups[-1].whole
    accuracy = _accuracy(session, entered, precisions, setup) if session and whole else {}

    about = {"model": subject.model, "threads": "" if gpu else torch.get_num_threads()}
    told = {"compute": compute, "backend": backend}
    rows = [row for group in groups
            for row in rows_of(group, about, told, subject.data, accuracy)]  # fmt: skip
    if csv is not None:
        records.append(csv, rows)
    if json:
        print(jsonlib.dumps([{**records.surroundings(), **row} for row in rows], indent=2))
    else:
        for group in groups:
            console.print(table_of(group, subject.model, accuracy))
        for line in remarks(groups[0], accuracy, subject.data, whole):
            console.print(line, style="dim", highlight=False)
    if plot is not None:
        save(plot_of(groups, subject.model), plot)


def _check(
    batches: Sequence[int], budget: Sequence[object], csv: Path | None, plot: Path | None
) -> None:
    for batch in batches:
        if batch < 1:
            raise ValueError(f"a batch must be at least 1 picture, got {batch}")
    if sum(given is not None for given in budget) > 1:
        raise ValueError("give one of --schedule, --gmacs and --keep, not several")
    if isinstance(budget[0], str):
        preset_or_file(budget[0])
    if csv is not None:
        records.check_target(csv)
    if plot is not None:
        check_target(plot)


def _use_threads(threads: int | None, gpu: bool) -> None:
    if threads is None:
        return
    if gpu:
        raise ValueError("--threads is for a CPU: the model runs on a GPU here")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def _loaded(subject: Subject, device: str, quiet: bool) -> tuple[Session | None, nn.Module]:
    source = subject.source()
    if source is not None:
        session = start(source, quiet)
        return session, session.model
    weights = subject.weights
    pretrained = weights is None and not subject.random_weights
    model = load(subject.model, weights=weights, pretrained=pretrained, size=subject.size)
    return None, model.to(device)


def _schedule(
    model: nn.Module, schedule: str | None, gmacs: float | None, keep: float | None
) -> Schedule:
    found = read_schedule(model, schedule, gmacs, keep)
    assert found is not None
    return found


def _images(session: Session | None, model: nn.Module, device: str) -> Tensor:
    """Pictures for methods whose cost depends on them: of the data, where there is any."""
    return core.noise(model, 8, device, torch.float32) if session is None else session.some_images()


def _accuracy(
    session: Session, entered: Sequence[Entrant], precisions: Sequence[Precision], setup: Setup
) -> Accuracy:
    """Of every entrant in every precision; stopped by Ctrl-C, of those that are finished."""
    contenders = [entrant.contender for entrant in entered if not entrant.failure]
    found: Accuracy = {}
    weights = session.model
    for precision in precisions:
        dtype: torch.dtype = getattr(torch, precision)
        setting = replace(session.setting, precision=dtype, options=setup.options)
        model = deepcopy(weights).to(dtype)
        try:
            found[precision] = replace(session, model=model, setting=setting).run(contenders)
        except KeyboardInterrupt:
            break
    return found
