"""`zerotprune embed`: vectors of many images, shard by shard."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from rich.console import Console

from ..backbones import Pool
from ..embed.embedder import Embedder, VectorType
from ..embed.engines import Cluster, Collector, Tally, first_batch, run_here, run_on_ray
from ..embed.shards import Shard, TarShard, find_shards, short_hash
from ..embed.writing import (
    FileFormat,
    VectorFolder,
    check_folder,
    earlier_schedule,
    leftovers,
    lock_folder,
)
from ..safety.files import bytes_of
from ..safety.ranges import RANGES
from .console import console_for, progress_bar
from .options import (
    DATA,
    MODEL,
    OUTPUT,
    BatchCount,
    BudgetOptions,
    EncoderOptions,
    Flag,
    InputName,
    JsonFlag,
    MethodName,
    ModelName,
    ModelPrecision,
    Output,
    Workers,
    preset_or_file,
    resolve_device,
    world_size,
)

Engine = Literal["local", "ray"]


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ShardOptions:
    """How to find the images, and how many to run at a time."""

    batch: BatchCount = 256
    "Images at a time."
    workers: Workers = 2
    "Processes that decode images; under Ray, tasks."
    images: Annotated[int, RANGES["images"]] | None = None
    "Images of a folder that make a shard, whose vectors go to one file. Default: 10000."
    column: str | None = None
    "For parquet files: the column with the bytes of images, or their paths."
    key: str | None = None
    "For parquet files: the column with their keys. Default: a usual name, or the row's number."


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True)
class VectorOptions:
    """What a vector is."""

    pool: Pool = "own"
    "What the library's own head reads, the CLS token, or the mean over the patches."
    raw: Flag = False
    "Do not divide vectors by their lengths."
    vectors: VectorType = "float32"
    "Type of the values."
    form: FileFormat = "parquet"
    "Format of the files: parquet, or NumPy's with the fields key, vector and error."


@Parameter(name="*", group="Engine")
@dataclass(frozen=True)
class EngineOptions:
    """Where to run."""

    engine: Engine = "local"
    "This process, and under torchrun its share of the shards; or Ray Data."
    address: str | None = None
    "Address of a Ray cluster, such as auto. Default: start one here, and stop it."
    actors: Annotated[int, RANGES["actors"]] | None = None
    "Under Ray: how many models run at once. Default: one for each GPU, or one."

    def check(self) -> None:
        if self.engine != "ray" and (self.address is not None or self.actors is not None):
            raise ValueError("--address and --actors are for --engine ray")
        if self.engine == "ray" and world_size() > 1:
            raise ValueError("--engine ray starts its own processes: start it without torchrun")


def embed(
    model: ModelName,
    data: Annotated[
        InputName,
        Parameter(help="A folder of images, or tar or parquet files: one, a folder, a glob."),
    ],
    *,
    out: Annotated[Output, Parameter(group=OUTPUT)],
    budget: BudgetOptions = BudgetOptions(),
    method: MethodName | None = None,
    loading: EncoderOptions = EncoderOptions(),
    precision: ModelPrecision = "float32",
    compile: Annotated[Flag, Parameter(group=MODEL)] = False,  # noqa: A002  the option's name
    reading: ShardOptions = ShardOptions(),
    vector: VectorOptions = VectorOptions(),
    running: EngineOptions = EngineOptions(),
    json: JsonFlag = False,
) -> None:
    """Embed images: write a file of keys, vectors and errors for each shard.

    After an interruption or a crash, run the same command again: finished shards stay.

    Example: `zerotprune embed vit_base_patch14_dinov2.lvd142m 'tars/{000..123}.tar' --cost 0.7
    --out vectors`

    Parameters
    ----------
    out
        Folder for the files, and for a manifest that says how they were made.
    compile
        Compile the model: worth its minute for many images.
    """
    budget.check(method, model)
    running.check()
    loading.check_weights(model)
    check_folder(out)
    left = leftovers(out)
    console, world = console_for(json), world_size()
    rank = int(os.environ.get("RANK", "0")) if world > 1 else 0
    VectorFolder(out).begin(rank)
    shards = find_shards(data, images=reading.images, column=reading.column, key=reading.key)
    inside = out.resolve().is_relative_to(Path(data).resolve())
    if inside and isinstance(shards[0], TarShard):  # a folder with folders has no shards
        raise ValueError(
            f"{out} is inside {data}, where it would hide the tar files: give another --out"
        )
    on_ray = running.engine == "ray"
    device = _device_there(loading.device) if on_ray else _device(loading.device, world)
    embedder = Embedder(
        model, pool=vector.pool, normalize=not vector.raw, batch_size=reading.batch,
        compile=compile, dtype=precision, vectors=vector.vectors, weights=loading.weights,
        size=loading.size, device=resolve_device("auto") if on_ray and budget.time else
        "cpu" if on_ray else device, method=None if budget.options else method,
        random_weights=loading.random_weights,
    )  # fmt: skip
    request = _request(budget, method)
    embedder = _with_schedule(embedder, budget, method, out, request, shards, console)
    with lock_folder(out, alone=rank == 0, left=left):
        settings = {"asked": request, **embedder.about()}
        folder = VectorFolder(out, settings, vector.form)
        if rank:
            folder.wait_for(shards)
        folder.admit(shards)
        pending = [(number, shard) for number, shard in enumerate(shards)
                if number % world == rank and not folder.is_finished(shard.name)]  # fmt: skip
        tally = Tally(sum(shard.weight for _, shard in pending))

        def run(collector: Collector) -> None:
            if on_ray:
                cluster = Cluster(running.address, running.actors, max(1, reading.workers))
                run_on_ray(replace(embedder, device=device), pending, collector, cluster)
            else:
                run_here(embedder, pending, collector, reading.workers)

        failures = (
            _embed_shards(run, folder, shards, embedder, tally, console, rank) if pending else {}
        )
        if world > 1:
            folder.end(rank)
            if failures:  # torchrun ends all processes when one fails
                folder.wait_for_ends(world)
    _print_summary(tally, shards, failures, out, console, json, rank)


def _request(budget: BudgetOptions, method: str | None) -> str:
    """Return the budget as it was given, with a hash of what is in the files that it names."""
    parts = [f"{name} {value}" for name, value in budget.options.items()]
    if budget.schedule is not None and Path(budget.schedule).exists():
        schedule = preset_or_file(budget.schedule, method)
        parts.append(f"({short_hash(schedule.one_line().encode())})")
    if budget.tuned:
        parts.append("--tuned")
    if method is not None:
        parts.append(f"--method {method}")
        file, is_file, _ = method.rpartition(".py:")
        if is_file:
            parts.append(f"({short_hash(bytes_of(Path(f'{file}.py')))})")
    return " ".join(parts) or "no budget"


def _with_schedule(
    embedder: Embedder,
    budget: BudgetOptions,
    method: str | None,
    out: Path,
    request: str,
    shards: list[Shard],
    console: Console,
) -> Embedder:
    """Fix the schedule: the folder's own if the options are the same as before."""
    earlier = earlier_schedule(out, request) if budget.options else None
    if earlier is not None:
        return embedder.pruned_by(earlier)
    if budget.time is not None and world_size() > 1:
        raise ValueError(
            "several processes would measure several speeds: start one without torchrun first, or "
            "give --cost"
        )
    schedule = None
    if budget.options:
        say = partial(console.print, highlight=False)
        sample = partial(first_batch, embedder, shards)
        schedule = budget.solve(embedder.build().model, method, sample, say)
    return embedder.settled() if schedule is None else embedder.pruned_by(schedule)


def _embed_shards(
    run: Callable[[Collector], None],
    folder: VectorFolder,
    shards: list[Shard],
    embedder: Embedder,
    tally: Tally,
    console: Console,
    rank: int,
) -> dict[str, str]:
    """Embed with a progress bar; return what could not be read, by shard."""
    with progress_bar(console, disable=rank != 0) as progress:
        bar = progress.add_task("embedding", total=None, note="")

        def advance(tally: Tally) -> None:
            note = f"{tally.images_per_second:.0f} images/s, bound by {tally.bound}"
            progress.update(bar, completed=tally.images, total=tally.total, note=note)

        collector = Collector(folder, shards, embedder, tally, advance)
        try:
            run(collector)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped after {tally.images} images: {tally.shards} shards are finished, run the "
                "same command to continue"
            ) from None
    tally.ended = tally.seconds
    return collector.failures


def _print_summary(
    tally: Tally,
    shards: list[Shard],
    failures: dict[str, str],
    out: Path,
    console: Console,
    json: bool,
    rank: int,
) -> None:
    if json and rank == 0:
        print(jsonlib.dumps({
            "images": tally.images, "unreadable": tally.unreadable, "shards": tally.shards,
            "shards_in_all": len(shards), "seconds": round(tally.ended, 3),
            "images_per_second": round(tally.images / tally.ended, 2) if tally.images else None,
            "bound": tally.bound if tally.images else None, "failed": failures, "out": str(out),
        }, indent=2))  # fmt: skip
    elif rank == 0:
        before = f"{len(shards) - len(failures)} of" if failures else "all"
        line = f"{before} {len(shards)} shards were finished before"
        if tally.images or tally.shards:
            speed = tally.images / tally.ended
            line = (f"{tally.images} images in {tally.ended:.1f} s: {speed:.1f} images/s, bound by "
                    f"{tally.bound}; {tally.shards} shards in {out}")  # fmt: skip
        console.print(line, soft_wrap=True)
        if tally.unreadable:
            line = f"{tally.unreadable} images could not be read: their rows say why"
            console.print(line, style="yellow")
    if failures:
        (name, why), *more = failures.items()
        others = f"; also {', '.join(name for name, _ in more)}" if more else ""
        raise ValueError(
            f"{len(failures)} of {len(shards)} shards could not be read, the others are finished: "
            f"{name}: {why}{others}"
        )


def _device_there(name: str) -> str:
    """Return the device of a cluster's machines, which may have others than this one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"with --engine ray, --device is cpu, cuda or auto, got {name}")
    return name


def _device(name: str, world: int) -> str:
    """Return the device; under torchrun, every process has its own GPU."""
    device = resolve_device(name)
    if world > 1 and device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    return device
