"""`zerotprune drift`: what pruning does to a model's vectors, without labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..backbones import Pool, featurize_
from ..budgets import Budget
from ..data.images import ImageDataset, batches, decode, read_sample
from ..measure.accuracy import UNPRUNED, Contender, Result, Setting, compare
from ..measure.drift import Drift, drifts_of, find_neighbours
from ..methods import DEFAULT, Method, names, resolve
from ..plots.drift import Kept, Moved, drift_figure, moved_figure
from ..plots.figures import check_figure_file, save
from .console import console_for, counting_images, left_out, new_table, print_json
from .evaluation import contenders_at, speedup_quartiles
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
    refuse_torchrun,
    resolve_device,
)

SHOWN = 10  # images that moved most


def drift(
    model: ModelName,
    data: DataName,
    *,
    cost: Several[Cost] = None,
    method: MethodNames = None,
    loading: EncoderOptions = EncoderOptions(),
    reading: ReadingOptions = ReadingOptions(),
    precision: ModelPrecision = "float32",
    pool: Annotated[Pool, Parameter(group=MODEL)] = "own",
    plots: FigureFolder = None,
    json: JsonFlag = False,
) -> None:
    """Measure how far pruning moves vectors, and whether their neighbours stay: without labels.

    Example: `zerotprune drift vit_small_patch14_dinov2.lvd142m photos --cost 0.7 0.55 --plots .`

    Parameters
    ----------
    cost
        Budgets, as shares of the unpruned compute; default 0.7 and 0.55.
    pool
        The vector: what the library's own head reads, the CLS token, or the mean over the patches.
    plots
        Folder for `drift.png`, and `moved.png` with the ten images that moved most.
    """
    budgets = [Budget(cost=share) for share in cost or (0.7, 0.55)]
    methods = [resolve(name) for name in method or names()]
    refuse_torchrun("drift runs in one process")
    files = () if plots is None else (plots / "drift.png", plots / "moved.png")
    for file in files:
        check_figure_file(file)
    device, console = resolve_device(loading.device), console_for(json)
    built = loading.load(model)
    if loading.random_weights:
        console.print("random weights: cost and speed are right, drift is not", style="yellow")
    images = reading.open(data, built, loading.size, labelled=False)
    vectors = featurize_(built, pool).eval()
    setting = Setting(device, getattr(torch, precision), keep_outputs=True)
    vectors.to(device, setting.precision)
    contenders = _contenders(vectors, images, budgets, methods, setting, console)
    results = _run(vectors, contenders, images, reading, setting, console)
    drifts = drifts_of(results)
    if json:
        print_json(_row(model, result, drift, results[0], images)
                   for result, drift in zip(results, drifts, strict=True))  # fmt: skip
    else:
        console.print(_table(model, results, drifts))
        _name_moved(console, images, *_default(results, drifts))
    if files:
        _draw(files, model, images, results, drifts)


def _contenders(
    model: nn.Module,
    images: ImageDataset,
    budgets: Sequence[Budget],
    methods: Sequence[Method],
    setting: Setting,
    console: Console,
) -> list[Contender]:
    """Return the unpruned model, and every method at every budget that it can meet."""

    @cache
    def sample() -> Tensor:
        return read_sample(images).to(setting.device, setting.precision)

    pruned = [
        contender
        for budget in budgets
        if budget.cost is not None
        for contender in contenders_at(budget.cost, methods, model, sample, console)
    ]
    if not pruned:
        raise ValueError("none of the methods can meet any of the budgets")
    return [UNPRUNED, *pruned]


def _run(
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


def _table(model: str, results: Sequence[Result], drifts: Sequence[Drift]) -> Table:
    table = new_table(f"{model}, {len(results[0].index)} images: cosine to the unpruned vector")
    table.add_column("method", overflow="fold")
    columns = ("GMACs", "speed-up", "cosine", "1st %", "recall@1", "@10", "query@1", "@10")
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
    console.print(title, highlight=False)
    for at in drift.moved(SHOWN):
        path = images.paths[result.index[at]]
        console.print(f"  {drift.cosines[at]:.4f}  {path}", markup=False, highlight=False)


def _row(
    model: str, result: Result, drift: Drift, reference: Result, images: ImageDataset
) -> dict[str, Any]:
    low, middle, high = result.speedup(reference)
    return {
        "model": model,
        "data": Path(images.name).name,
        "images": len(result.index),
        "name": result.contender.name,
        "schedule": result.contender.schedule.one_line(),
        "gmacs": round(result.gmacs(), 6),
        "speedup": round(middle, 4),
        "speedup_quartiles": [round(low, 4), round(high, 4)],
        "images_per_second": round(result.images_per_second, 1),
        "cosine": round(drift.mean, 6),
        "cosine_first_percentile": round(drift.first_percentile, 6),
        **{f"recall_at_{count}": round(share, 5) for count, share in drift.recall.items()},
        **{f"recall_at_{count}_unpruned_index": round(share, 5)
           for count, share in drift.recall_unpruned_index.items()},
        "moved_most": [[images.paths[result.index[at]], round(drift.cosines[at].item(), 5)]
                       for at in drift.moved(SHOWN)],
    }  # fmt: skip


def _draw(
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
    before, after = _nearest(results[0]), _nearest(result)
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


def _nearest(result: Result) -> list[int]:
    vectors = nn.functional.normalize(torch.cat(result.outputs).double(), dim=-1)
    return find_neighbours(vectors, vectors, 1)[:, 0].tolist()


def _thumbnail(images: ImageDataset, at: int) -> Image.Image:
    """Return the middle of an image as a small square."""
    path, read, _ = images.items[at]
    image = decode(io.BytesIO(read()), path)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((160, 160))
