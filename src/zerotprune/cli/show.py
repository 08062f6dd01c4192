"""`zerotprune show`: what was dropped of an image and what was kept, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from rich.console import Console
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets.contenders import Contender, contender, method_named
from ..data import demo as built_in
from ..data.images import transform_for
from ..data.models import load, outline
from ..files import names_in
from ..pruning import gmacs as unpruned_gmacs
from ..show.gallery import check_count, load_images
from ..show.heads import check_heads
from ..show.render import check_drawable, draw
from ..show.scene import Scene, make_scene, percent
from .arguments import preset_or_file
from .subject import chosen_device

SEED = 2025  # of the built-in model's own images; those of the demo


def show(
    *images: Path,
    model: str,
    weights: Path | None = None,
    size: int | None = None,
    schedule: str | None = None,
    gmacs: float | None = None,
    keep: float | None = None,
    method: str = "zero-tprune",
    lines: Annotated[bool, Parameter(negative=())] = False,
    heads: Annotated[bool, Parameter(negative=())] = False,
    grid: Annotated[bool, Parameter(negative=())] = False,
    names: Path | None = None,
    limit: int | None = None,
    device: str = "auto",
    out: Path = Path("show.png"),
) -> None:
    """Draw which patches each stage drops and keeps, with the predictions before and after.

    Parameters
    ----------
    images
        Files, or folders of them. Without any, the built-in model gets images of its own.
    model
        `demo` or the name of a timm model.
    weights
        Local weights: safetensors, or a pickle of tensors alone. Default: timm's pretrained ones.
    size
        Side of the images in pixels, if not the model's own.
    schedule
        A preset of the paper (ablation-is, zero-tp-a, …) or a JSON file.
    gmacs
        Set the method to this budget.
    keep
        Set the method to this share of the unpruned cost; the default is 0.65.
    method
        zero-tprune, zero-tprune-uni, tome, tome-uni, ats, evit, diffrate, cls-attention,
        average-attention, accumulated-attention, random or slicing.
    lines
        Draw a line from each patch dropped as similar to the one that made it redundant.
    heads
        Draw also what each head votes for, its variance, and whether VHF leaves it out.
    grid
        Many images: each beside what is left of it in the end.
    names
        A text file with the name of a class on each line.
    limit
        Take only so many images, spread evenly; of the built-in model's own, 4 if not given.
    device
        cpu, cuda, or auto: cuda where there is one.
    out
        PNG, SVG, HTML, or stage by stage an animated GIF or WebP, by the file's ending.
    """
    check_drawable(out, heads=heads, tiles=grid)
    _check(images, model, out, [schedule, gmacs, keep], method, heads, limit)
    where = chosen_device(device)
    named = load_images(images, limit) if images else []
    built = load(model, weights=weights, pretrained=weights is None, size=size).to(where)
    classes = None if names is None else _read_names(names, built)
    if named:
        transform = transform_for(built, size)
        captions = [each.name for each in named]
        batch = torch.stack([transform(each.image) for each in named])
    else:
        batch, captions = _generate(built, limit)
    batch = batch.to(where)
    chosen = _configure(method, built, schedule, gmacs, keep, batch)
    title = f"{method} on {'the built-in model' if model == 'demo' else model}"
    scene = make_scene(
        title, built, chosen, batch, captions, names=classes, lines=lines, heads=heads
    )
    draw(scene, out, tiles=grid)
    _report(scene, out)


def _check(
    images: tuple[Path, ...],
    model: str,
    out: Path,
    budget: list[str | float | None],
    method: str,
    heads: bool,
    limit: int | None,
) -> None:
    """Say what is wrong before weights are fetched and images read."""
    if sum(given is not None for given in budget) > 1:
        raise ValueError("give one of --schedule, --gmacs and --keep, not several")
    if isinstance(budget[0], str):
        preset_or_file(budget[0])
    named = method_named(method)
    if heads:
        check_heads(named)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if any(out.resolve() == path.resolve() for path in images):
        raise ValueError(f"{out} is one of the images: give another name with --out")
    backbone(outline(model))
    if not images and model != "demo":
        raise ValueError(f"give images to show: only the built-in model has its own, not {model}")


def _read_names(path: Path, model: nn.Module) -> list[str]:
    names = names_in(path)
    classes = int(getattr(model, "num_classes", 0))
    if len(names) != classes:
        raise ValueError(f"{path} names {len(names)} classes, the model has {classes}")
    return names


def _generate(model: nn.Module, limit: int | None) -> tuple[Tensor, list[str]]:
    """Images for the built-in model, and captions."""
    count = 4 if limit is None else limit
    check_count(count)
    if backbone(model).geometry.grid != (14, 14):
        raise ValueError("the built-in model's own images are of one size: leave --size out")
    images, labels = built_in.pictures(count, SEED)
    return images, [f"a {label}" for label in labels.tolist()]


def _configure(
    method: str,
    model: nn.Module,
    schedule: str | None,
    gmacs: float | None,
    keep: float | None,
    images: Tensor,
) -> Contender:
    """The method by the user's schedule, or set to the budget by its own knob."""
    named = method_named(method)
    if schedule is not None:
        return Contender(method, preset_or_file(schedule), named)
    share = 0.65 if keep is None else keep
    if not 0 < share <= 1:
        raise ValueError(f"keep must be in (0, 1], got {share}")
    budget = share * unpruned_gmacs(model) if gmacs is None else gmacs
    return contender(method, model, budget, images if named.adaptive else None)


def _report(scene: Scene, out: Path) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"{out}: {scene.title}, {scene.about}")
    for caption, story in zip(scene.captions, scene.stories, strict=True):
        left = story.outcome().kept
        line = f"  {caption}: {left} of {story.patches} patches left"
        if story.before:
            first, then = story.before[0], story.after[0]
            line += f"; {first.label} {percent(first.share)} → {then.label} {percent(then.share)}"
        console.print(line)
