"""`zerotprune drift`: what pruning does to a model's vectors, without labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..backbones import Pool, featurize_
from ..data.images import ImageDataset, batches, decode, read_sample
from ..measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from ..measure.contenders import at_costs, at_speeds
from ..measure.drift import Drift, drift_row, drifts_of, nearest_images
from ..measure.records import hardware
from ..methods import DEFAULT, names, resolve
from ..plots.drift import Kept, Moved, drift_figure, moved_figure
from ..plots.figures import check_figure_file, save
from .console import (
    console_for,
    counting_images,
    left_out,
    new_table,
    print_json,
    print_table,
    showing,
)
from .evaluation import speedup_quartiles
from .options import (
    MODEL,
    Cost,
    DataName,
    EncoderOptions,
    FigureFolder,
    JsonFlag,
    MethodNames,
    ModelName,
    ModelPrecision,
    ReadingOptions,
    Several,
    Speedup,
    refuse_torchrun,
    resolve_device,
)

COSTS = (0.7, 0.55)
SHOWN = 10  # images that moved most


def drift(
    model: ModelName,
    data: DataName,
    *,
    cost: Several[Cost] = None,
    speedup: Several[Speedup] = None,
    method: MethodNames = None,
    loading: EncoderOptions = EncoderOptions(),
    reading: ReadingOptions = ReadingOptions(),
    precision: ModelPrecision = "float32",
    pool: Annotated[Pool, Parameter(group=MODEL)] = "own",
    plots: FigureFolder = None,
    json: JsonFlag = False,
) -> None:
    """Measure how far pruning moves vectors, and whether their neighbors stay: without labels.

    Example: `zerotprune drift vit_small_patch14_dinov2.lvd142m photos --cost 0.7 0.55 --plots .`

    Parameters
    ----------
    cost
        Budgets, as shares of the unpruned compute; default 0.7 and 0.55.
    speedup
        Budgets, as times the unpruned model's speed, measured on this machine.
    pool
        The vector: what the library's own head reads, the CLS token, or the mean over the patches.
    plots
        Folder for `drift.png`, and `moved.png` with the ten images that moved most.
    """
    if cost and speedup:
        raise ValueError("give one kind of budget, not several: --cost and --speedup")
    methods = [resolve(name) for name in method or names()]
    refuse_torchrun("drift runs in one process")
    files = () if plots is None else (plots / "drift.png", plots / "moved.png")
    for file in files:
        check_figure_file(file)
    device, console = resolve_device(loading.device), console_for(json)
    built = loading.load(model)
    if loading.random_weights:
        console.print("random weights: cost and speed are right, drift is not", style="yellow")
    images = reading.open(data, built, loading.size, labeled=False)
    vectors = featurize_(built, pool).eval()
    setting = Setting(device, getattr(torch, precision), keep_outputs=True)
    vectors.to(device, setting.precision)

    def sample(count: int = 32) -> Tensor:
        return read_sample(images, count).to(device, setting.precision)

    report = left_out(console)
    if speedup:
        with showing(console, "measuring") as show:
            entries, _ = at_speeds(vectors, speedup, methods, sample(reading.batch), report, show)
    else:
        entries = at_costs(vectors, cost or COSTS, methods, sample, report)
    contenders = [UNPRUNED, *(entry.contender for entry in entries)]
    results = _embed_images(vectors, contenders, images, reading, setting, console)
    drifts = drifts_of(results)
    if json:
        about = {"model": model, "hardware": hardware(device)}
        print_json(about | drift_row(result, drift, results[0], images, SHOWN)
                   for result, drift in zip(results, drifts, strict=True))  # fmt: skip
    else:
        print_table(console, _drift_table(model, results, drifts))
        _name_moved(console, images, *_default(results, drifts))
    if files:
        _draw_drift(files, model, images, results, drifts)


def _embed_images(
    model: nn.Module,
    contenders: Sequence[Contender],
    images: ImageDataset,
    reading: ReadingOptions,
    setting: Setting,
    console: Console,
) -> list[Result]:
    turns = batches(images, reading.batch, report=left_out(console), workers=reading.workers,
                    strict=reading.strict)  # fmt: skip
    with counting_images(console, "embedding", len(images)) as show:

        def advance(results: list[Result]) -> None:
            show(len(results[0].index), f"{results[-1].images_per_second:.0f} images/s")

        results = compare(model, contenders, turns, advance, setting)
    if not results[0].index:
        raise ValueError(f"none of the images in {images.name} can be read")
    return results


def _drift_table(model: str, results: Sequence[Result], drifts: Sequence[Drift]) -> Table:
    table = new_table(f"{model}, {len(results[0].index)} images: cosine to the unpruned vector")
    table.add_column("method", overflow="fold")
    columns = ("GMACs", "speedup", "cosine", "1st %", "recall@1", "@10", "query@1", "@10")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    reference = results[0]
    for result, drift in zip(results, drifts, strict=True):
        pruned = bool(result.contender.schedule.stages)
        shares = [*drift.recall.values(), *drift.recall_unpruned_index.values()]
        cells = [
            f"{drift.mean:.4f}",
            f"{drift.first_percentile:.4f}",
            *map("{:.3f}".format, shares),
        ]
        table.add_row(
            result.contender.name,
            f"{result.gmacs():.3f}",
            speedup_quartiles(result, reference).partition(" ")[0] if pruned else "",
            *(cells if pruned else [""] * len(cells)),
        )
    table.caption = "recall: queries and index pruned; query: pruned queries, unpruned index"
    return table


def _default(results: Sequence[Result], drifts: Sequence[Drift]) -> tuple[Result, Drift]:
    """Return the first result of the default method, or else the first of all."""
    pairs = list(zip(results, drifts, strict=True))[1:]
    return next((pair for pair in pairs if pair[0].contender.name == DEFAULT), pairs[0])


def _name_moved(console: Console, images: ImageDataset, result: Result, drift: Drift) -> None:
    title = f"moved most by {result.contender.name} at {result.gmacs():.3f} GMACs:"
    console.print(title)
    for at in drift.moved(SHOWN):
        path = images.paths[result.index[at]]
        console.print(f"  {drift.cosines[at]:.4f}  {path}")


def _draw_drift(
    files: Sequence[Path],
    model: str,
    images: ImageDataset,
    results: Sequence[Result],
    drifts: Sequence[Drift],
) -> None:
    points = [
        Kept(result.contender.name, result.speedup(results[0])[1], result.gmacs(),
             drift.recall[10], drift.recall_unpruned_index[10])
        for result, drift in list(zip(results, drifts, strict=True))[1:]
    ]  # fmt: skip
    title = f"{model}, {len(results[0].index)} images"
    save(drift_figure(points, title), files[0])
    result, drift = _default(results, drifts)
    before, after = nearest_images(results[0]), nearest_images(result)
    moved = [
        Moved(
            _thumbnail(images, result.index[at]),
            Path(images.paths[result.index[at]]).name,
            drift.cosines[at].item(),
            _thumbnail(images, result.index[before[at]]),
            _thumbnail(images, result.index[after[at]]),
        )
        for at in drift.moved(SHOWN)
    ]
    about = f"{title}: moved most by {result.contender.name} at {result.gmacs():.3g} GMACs"
    save(moved_figure(moved, about), files[1])


def _thumbnail(images: ImageDataset, at: int) -> Image.Image:
    """Return the middle of an image as a small square."""
    path, read, _ = images.items[at]
    image = decode(io.BytesIO(read()), path)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((160, 160))
