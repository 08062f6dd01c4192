"""`zerotprune show`: what was dropped of an image and what was kept, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ..backbones import backbone
from ..data import demo as built_in
from ..data.models import DEMO, load, outline
from ..data.photographs import load_photographs
from ..files import names_in
from ..methods import name_of
from ..show.gallery import NamedImage, check_count, load_images
from ..show.heads import check_heads
from ..show.render import check_drawable, draw
from ..show.scene import Scene, make_scene, percent
from .options import (
    BudgetOptions,
    Flag,
    MethodName,
    ModelName,
    ModelOptions,
    chosen_device,
)

COST = 0.65
SEED = 2025  # of the built-in model's own images; those of the demo


def show(
    *images: Path,
    model: ModelName,
    budget: BudgetOptions | None = None,
    method: MethodName | None = None,
    loading: ModelOptions | None = None,
    lines: Flag = False,
    heads: Flag = False,
    grid: Flag = False,
    names: Path | None = None,
    limit: int | None = None,
    out: Path = Path("show.png"),
) -> None:
    """Draw which patches each stage drops and keeps, with the predictions before and after.

    Without a budget the cost is 0.65.

    Example: `zerotprune show cat.jpg --model deit_small_patch16_224 --cost 0.6 --lines`

    Parameters
    ----------
    images
        Files, or folders of them. Without any: photographs that come with the package, or for the
        built-in model images of its own.
    lines
        Draw a line from each patch dropped as similar to the one that made it redundant.
    heads
        Draw also what each head votes for, its variance, and whether VHF leaves it out.
    grid
        Many images: each beside what is left of it in the end.
    names
        A text file with the name of a class on each line.
    limit
        Take only so many images, spread evenly; of those that come along, 4 if not given.
    out
        PNG, SVG, HTML, or stage by stage an animated GIF or WebP, by the file's ending.
    """
    budget, loading = budget or BudgetOptions(), loading or ModelOptions()
    if not budget.given:
        budget = replace(budget, cost=COST)
    budget.check()
    check_drawable(out, heads=heads, tiles=grid)
    _check_method(budget, method, heads)
    _check(images, loading.outlined(model), limit)
    device = chosen_device(loading.device)
    named = load_images(images, limit) if images else _photographs(model, limit)
    built = load(**loading.named(model)).to(device)
    classes = None if names is None else _read_names(names, built)
    if named:
        transform = backbone(built).transform(loading.size)
        captions = [each.name for each in named]
        batch = torch.stack([transform(each.image) for each in named])
    else:
        batch, captions = _generate(built, limit)
    batch = batch.to(device)
    schedule = budget.solve(built, method, lambda: batch, print)
    assert schedule is not None
    about = "the built-in model" if model == DEMO else model
    scene = make_scene(f"{name_of(schedule.method)} on {about}", built, schedule, batch, captions,
                       names=classes, lines=lines, heads=heads)  # fmt: skip
    draw(scene, out, tiles=grid)
    _report(scene, out)


def _check(images: tuple[Path, ...], model: dict[str, Any], limit: int | None) -> None:
    """Say what is wrong before weights are fetched and images read."""
    backbone(outline(**model))
    if not images and limit is not None:
        check_count(limit)


def _check_method(budget: BudgetOptions, method: str | None, heads: bool) -> None:
    """A schedule that was made for a method keeps it, unless another one is named."""
    named = budget.acting(method)
    if heads:
        check_heads(named)


def _photographs(model: str, limit: int | None) -> list[NamedImage]:
    """What comes with the package, for models that know photographs."""
    return [] if model == DEMO else [NamedImage(*each) for each in load_photographs(limit)]


def _read_names(path: Path, model: nn.Module) -> list[str]:
    names = names_in(path)
    classes = backbone(model).outputs
    if len(names) != classes:
        raise ValueError(f"{path} names {len(names)} classes, the model has {classes}")
    return names


def _generate(model: nn.Module, limit: int | None) -> tuple[Tensor, list[str]]:
    """Images for the built-in model, and captions."""
    count = 4 if limit is None else limit
    if backbone(model).geometry.grid != (14, 14):
        raise ValueError("the built-in model's own images are of one size: leave --size out")
    images, labels = built_in.images(count, SEED)
    return images, [f"a {label}" for label in labels.tolist()]


def _report(scene: Scene, out: Path) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"{out}: {scene.title}, {scene.about}")
    for caption, story in zip(scene.captions, scene.stories, strict=True):
        left = story.outcome().kept
        line = (
            f"  {caption}: {left} of {story.patches} {'tokens' if story.merges else 'patches'} left"
        )
        if story.before:
            first, then = story.before[0], story.after[0]
            line += f"; {first.label} {percent(first.share)} → {then.label} {percent(then.share)}"
        console.print(line)
