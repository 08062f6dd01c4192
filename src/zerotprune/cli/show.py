"""`zerotprune show`: what was dropped of a picture and what was kept, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from rich.console import Console
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets.contenders import Contender, contender, measured_gmacs, method_named
from ..data import demo as built_in
from ..data.images import transform_for
from ..data.models import load, outline
from ..files import names_in
from ..measure.modes import sharing_copy
from ..methods import DiffRate, ToMe
from ..plan import Plan
from ..pruning import gmacs as unpruned_gmacs
from ..show.captions import percent
from ..show.drawing import check_target, draw
from ..show.gallery import MOST, gathered
from ..show.painting import as_picture
from ..show.sheet import Scene
from ..show.story import Story, check_heads, tell
from .arguments import preset_or_file
from .subject import chosen_device

SEED = 2025  # of the built-in model's own pictures; those of the demo
BATCH = 16


def show(
    *pictures: Path,
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
    pictures
        Files, or folders of them. Without any, the built-in model gets pictures of its own.
    model
        `demo` or the name of a timm model.
    weights
        Local weights: safetensors, or a pickle of tensors alone. Default: timm's pretrained ones.
    size
        Side of the pictures in pixels, if not the model's own.
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
        Many pictures: each beside what is left of it in the end.
    names
        A text file with the name of a class on each line.
    limit
        Take only so many pictures, spread evenly; of the built-in model's own, 4 if not given.
    device
        cpu, cuda, or auto: cuda where there is one.
    out
        PNG, SVG, HTML, or stage by stage an animated GIF or WebP, by the file's ending.
    """
    check_target(out, heads=heads, tiles=grid)
    _check(pictures, model, out, [schedule, gmacs, keep], method, heads, limit)
    where = chosen_device(device)
    found = gathered(pictures, limit) if pictures else []
    built = load(model, weights=weights, pretrained=weights is None, size=size).to(where)
    classes = None if names is None else _names(names, built)
    if found:
        transform = transform_for(built, size)
        captions = [each.name for each in found]
        images = torch.stack([transform(each.picture) for each in found])
    else:
        images, captions = _own(built, limit)
    images = images.to(where)
    chosen = _chosen(method, built, schedule, gmacs, keep, images)
    told: list[Story] = []
    for part in images.split(BATCH):
        told += tell(built, part, chosen.schedule, chosen.method, heads=heads, names=classes)
    shown = [as_picture(image, built) for image in images]
    about = _about(built, chosen, images)
    name = "the built-in model" if model == "demo" else model
    merges = isinstance(chosen.method, ToMe | DiffRate)
    scene = Scene(f"{method} on {name}", about, shown, told, captions, lines, merges)
    draw(scene, out, tiles=grid)
    _report(scene, out)


def _check(
    pictures: tuple[Path, ...],
    model: str,
    out: Path,
    budget: list[str | float | None],
    method: str,
    heads: bool,
    limit: int | None,
) -> None:
    """Say what is wrong before weights are fetched and pictures read."""
    if sum(given is not None for given in budget) > 1:
        raise ValueError("give one of --schedule, --gmacs and --keep, not several")
    if isinstance(budget[0], str):
        preset_or_file(budget[0])
    named = method_named(method)
    if heads:
        check_heads(named)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if any(out.resolve() == path.resolve() for path in pictures):
        raise ValueError(f"{out} is one of the pictures: give another name with --out")
    backbone(outline(model))
    if not pictures and model != "demo":
        raise ValueError(f"give pictures to show: only the built-in model has its own, not {model}")


def _names(path: Path, model: nn.Module) -> list[str]:
    found = names_in(path)
    classes = int(getattr(model, "num_classes", 0))
    if len(found) != classes:
        raise ValueError(f"{path} names {len(found)} classes, the model has {classes}")
    return found


def _own(model: nn.Module, limit: int | None) -> tuple[Tensor, list[str]]:
    """Generated pictures for the built-in model."""
    count = 4 if limit is None else limit
    if count > MOST:
        raise ValueError(f"{count} pictures are too many for one drawing: take up to {MOST}")
    if backbone(model).geometry.grid != (14, 14):
        raise ValueError("the built-in model's own pictures are of one size: leave --size out")
    images, labels = built_in.pictures(count, SEED)
    return images, [f"a {label}" for label in labels.tolist()]


def _chosen(
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


def _about(model: nn.Module, chosen: Contender, images: Tensor) -> str:
    plan, full = (
        Plan(chosen.schedule, chosen.method, backbone(model).geometry),
        unpruned_gmacs(model),
    )
    if chosen.method.adaptive:
        cost = measured_gmacs(sharing_copy(model), plan, images)
    else:
        cost = plan.gmacs()
    return f"{full:.3f} → {cost:.3f} GMACs ({percent(cost / full)}), nothing trained"


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
