"""`zerotprune show`: draw what is kept, merged and dropped of an image, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..data import demo as built_in
from ..data.demo import load_photographs
from ..data.models import DEMO, is_model_folder
from ..methods import name_of
from ..safety.files import printable
from ..safety.ranges import RANGES
from ..show.layout import check_drawable, draw
from ..show.scene import (
    NamedImage,
    Scene,
    check_count,
    load_images,
    make_scene,
    percent,
)
from ..show.story import check_heads
from .console import console_for
from .options import (
    BudgetOptions,
    Flag,
    Input,
    Limit,
    MethodName,
    ModelName,
    ModelOptions,
    Output,
    read_class_names,
    resolve_device,
)

COST = 0.65
SEED = 2025  # of the built-in model's own images; those of the demo


def show(
    *images: Input,
    model: ModelName,
    budget: BudgetOptions = BudgetOptions(),
    method: MethodName | None = None,
    loading: ModelOptions = ModelOptions(),
    lines: Flag = False,
    heads: Flag = False,
    grid: Flag = False,
    names: Input | None = None,
    limit: Limit | None = None,
    panels: Annotated[int, RANGES["panels"]] | None = None,
    out: Output = Path("show.png"),
) -> None:
    """Draw which patches each stage keeps, merges and drops, and the predictions before and after.

    Without a budget the cost is 0.65.

    Example: `zerotprune show cat.jpg --model deit_small_patch16_224 --cost 0.6 --lines`

    Parameters
    ----------
    images
        Image files and folders. Default: photographs that come with the package, or generated
        images for the built-in model.
    lines
        Draw a line from each similar patch to the one that made it redundant.
    heads
        Draw what each head votes for, its variance, and whether VHF leaves it out.
    grid
        Draw each image beside what is left of it in the end; for many images.
    names
        A text file with one class name per line.
    limit
        Draw at most this many images, evenly spread. Without images of yours: 4.
    panels
        Draw at most this many panels for each image, evenly spread over the stages.
    out
        PNG, SVG, HTML, or an animated GIF or WebP, by the suffix.
    """
    if not budget.options and not is_model_folder(model):
        budget = replace(budget, cost=COST)
    budget.check()
    check_drawable(out, heads=heads, tiles=grid, panels=panels)
    acting = budget.acting(method)
    if heads:
        check_heads(acting)
    backbone(loading.outline(model))  # refuses a model before its weights are loaded
    if not images and limit is not None:
        check_count(limit)
    device = resolve_device(loading.device)
    loaded = load_images(images, limit) if images else _photographs(model, limit)
    vit = loading.load(model).to(device)
    classes = None if names is None else read_class_names(names, vit)
    if loaded:
        transform = backbone(vit).transform(loading.size)
        captions = [name for name, _ in loaded]
        batch = torch.stack([transform(image) for _, image in loaded])
    else:
        batch, captions = _generate(vit, limit)
    batch = batch.to(device)
    schedule = budget.solve(vit, method, lambda: batch, print)
    if schedule is None:
        raise ValueError(f"{model} was saved unpruned: give a budget, such as --cost {COST}")
    about = "the built-in model" if model == DEMO else model
    scene = make_scene(f"{name_of(schedule.method)} on {about}", vit, schedule, batch, captions,
                       names=classes, lines=lines, heads=heads, panels=panels)  # fmt: skip
    draw(scene, out, tiles=grid)
    _print_outcomes(scene, out)


def _photographs(model: str, limit: int | None) -> list[NamedImage]:
    """Return the photographs of the package; the built-in model has its own images."""
    return [] if model == DEMO else [NamedImage(*photo) for photo in load_photographs(limit)]


def _generate(model: nn.Module, limit: int | None) -> tuple[Tensor, list[str]]:
    """Generate images and captions for the built-in model."""
    count = 4 if limit is None else limit
    if backbone(model).geometry.grid != (14, 14):
        raise ValueError("the built-in model's images have one size: omit --size, or name images")
    images, labels = built_in.images(count, SEED)
    return images, [f"a {label}" for label in labels.tolist()]


def _print_outcomes(scene: Scene, out: Path) -> None:
    console = console_for()
    print_line = partial(console.print, soft_wrap=True)
    print_line(printable(f"{out}: {scene.title}, {scene.about}"))
    for caption, story in zip(scene.captions, scene.stories, strict=True):
        left = story.outcome().kept
        line = (
            f"  {caption}: {left} of {story.patches} {'tokens' if story.merges else 'patches'} left"
        )
        if story.before:
            before, after = story.before[0], story.after[0]
            line += f"; {before.label} {percent(before.share)}"
            line += f" → {after.label} {percent(after.share)}"
        print_line(line)
