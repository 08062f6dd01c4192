"""Paint on a picture what a stage did to its patches: pixels alone, quick enough for a slider."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from ..shapes import Float
from ..tracing import Fate
from .story import StageView

# Okabe and Ito's colours: they stay apart for every kind of colour vision, and in grey.
SIMILAR, UNIMPORTANT, GONE = "#E69F00", "#0072B2", "#F2F2F2"
LINE = "#D55E00"  # from a similar patch to its partner
#: how much of a patch its colour covers
COVER = {
    Fate.SIMILAR: (SIMILAR, 0.85),
    Fate.UNIMPORTANT: (UNIMPORTANT, 0.85),
    Fate.GONE: (GONE, 1.0),
}
#: dark to bright, evenly in lightness and safe for every kind of colour vision (cividis)
_HEAT = ("#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369",
         "#E1CC55", "#FEE838")  # fmt: skip
REACH = 5.0  # heat maps tell importance apart from a fifth of the mean to five times it
_EDGE = 0.18  # strength of the lines between patches
_FINER = 2  # lines are drawn so many times larger and shrunk, which smooths them

Pixels = np.ndarray[Any, np.dtype[Any]]


def paint(
    picture: Image.Image, stage: StageView, *, lines: bool = False, side: int = 448
) -> Image.Image:
    """The picture with every dropped patch covered in the colour of its fate.

    `side` is that of the longer edge, as nearly as whole patches allow. With `lines`, one goes from
    each similar patch to the partner that made it redundant.
    """
    rows, cols = stage.fate.shape
    cell = cell_for((rows, cols), side)
    pixels = np.asarray(fitted(picture, (rows, cols), side), dtype=np.float32)
    fates = stage.fate.numpy().repeat(cell, axis=0).repeat(cell, axis=1)
    colours, strengths = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
    for fate, (colour, strength) in COVER.items():
        colours[fate], strengths[fate] = rgb(colour), strength
    cover = strengths[fates][..., None]
    pixels = pixels + cover * (colours[fates] - pixels)
    _draw_edges(pixels, cell)
    painted = Image.fromarray(pixels.round().astype(np.uint8))
    return _with_lines(painted, stage, cell) if lines else painted


def cell_for(grid: tuple[int, int], side: int) -> int:
    """The edge of one patch in pixels."""
    return max(2, round(side / max(grid)))


def fitted(picture: Image.Image, grid: tuple[int, int], side: int) -> Image.Image:
    """The picture at a size that is a whole number of pixels for every patch."""
    cell = cell_for(grid, side)
    size = (grid[1] * cell, grid[0] * cell)
    return picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)


def heat(values: Float[Tensor, "rows cols"], reach: float = REACH) -> Image.Image:
    """Importance as a heat map with a pixel for each patch, on a logarithmic scale about 1."""
    place = (1 + np.log(np.clip(values.numpy(), 1 / reach, reach)) / np.log(reach)) / 2
    seen = np.isfinite(place)
    stops = np.array([rgb(colour) for colour in _HEAT], np.float32)
    at = np.where(seen, place, 0.0) * (len(stops) - 1)
    mixed = np.stack(
        [np.interp(at, np.arange(len(stops)), stops[:, each]) for each in range(3)], axis=-1
    )
    mixed[~seen] = rgb(GONE)
    return Image.fromarray(mixed.round().astype(np.uint8))


def heat_scale(reach: float = REACH) -> Image.Image:
    """All colours of a heat map in a row."""
    return heat(reach ** torch.linspace(-1, 1, 64)[None], reach)


def as_picture(image: Float[Tensor, "3 height width"], model: nn.Module) -> Image.Image:
    """What the model was shown, as a picture to look at: its normalisation undone."""
    config = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (
        torch.tensor(tuple(config.get(name) or (0.5, 0.5, 0.5)), dtype=torch.float32)
        for name in ("mean", "std")
    )
    values = image.detach().float().cpu() * std[:, None, None] + mean[:, None, None]
    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def rgb(colour: str) -> tuple[int, int, int]:
    """#RRGGBB as three numbers."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _draw_edges(pixels: Pixels, cell: int) -> None:
    """Faint lines between patches, in place; none where patches are tiny."""
    if cell < 10:
        return
    for at in range(cell, pixels.shape[0], cell):
        pixels[at] += _EDGE * (255 - pixels[at])
    for at in range(cell, pixels.shape[1], cell):
        pixels[:, at] += _EDGE * (255 - pixels[:, at])


def _with_lines(painted: Image.Image, stage: StageView, cell: int) -> Image.Image:
    large = (painted.width * _FINER, painted.height * _FINER)
    layer = Image.new("L", large)
    halo = Image.new("L", large)
    ink, under = ImageDraw.Draw(layer), ImageDraw.Draw(halo)
    width, dot = max(2, cell * _FINER // 9), max(2, cell * _FINER // 7)
    for here, there in pairs(stage):
        ends = [(_FINER * cell * (x + 0.5), _FINER * cell * (y + 0.5)) for x, y in (here, there)]
        under.line(ends, fill=255, width=width + 2 * _FINER)
        ink.line(ends, fill=255, width=width)
        x, y = ends[1]
        under.ellipse((x - dot - 2, y - dot - 2, x + dot + 2, y + dot + 2), fill=255)
        ink.ellipse((x - dot, y - dot, x + dot, y + dot), fill=255)
    for mask, colour in ((halo, "#FFFFFF"), (layer, LINE)):
        painted.paste(rgb(colour), (0, 0), mask.resize(painted.size, Image.Resampling.BOX))
    return painted


def pairs(stage: StageView) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(column, row) of each similar patch, and of the partner that made it redundant."""
    cols = stage.partner.shape[1]
    found = []
    for patch, partner in enumerate(stage.partner.flatten().tolist()):
        if partner >= 0:
            here, there = divmod(patch, cols), divmod(partner, cols)
            found.append(((here[1], here[0]), (there[1], there[0])))
    return found
