"""What the page has to offer: models, as whoever started it named them, and generated examples."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor, nn

from ..backbones import backbone
from ..data import demo
from ..data.images import Transform, transform_for
from ..pruning import gmacs
from ..show.painting import as_picture, fitted
from ..show.story import class_names

BUILT_IN = "demo"
SHOWN = 448  # pixels, the longer side of a picture on the page
_QUALITY = 88

_EXAMPLES = 8
_SEED = 7
_CLUTTER = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.35, 0.35)


@dataclass(frozen=True)
class Sight:
    """A picture as one model sees it, and as the page shows it."""

    image: Tensor  # (1, 3, height, width)
    link: str  # the same part of it as a data URL, in the best quality the picture has


@dataclass(frozen=True)
class Offer:
    """A model by the name that it has on the page."""

    name: str
    model: nn.Module
    names: Sequence[str] | None = None  # of the classes, where the starter gave them
    own_weights: bool = False
    transform: Transform = field(init=False)
    finer: Transform | None = field(init=False)

    def __post_init__(self) -> None:
        geometry = backbone(self.model).geometry  # refuses what cannot be pruned, at the start
        object.__setattr__(self, "transform", transform_for(self.model))
        square = geometry.grid[0] == geometry.grid[1]
        finer = transform_for(self.model, SHOWN) if square else None
        object.__setattr__(self, "finer", finer)

    @cached_property
    def unpruned(self) -> float:
        """GMACs of the model as it is."""
        return gmacs(self.model)

    @cached_property
    def labels(self) -> list[str]:
        return list(class_names(self.model) if self.names is None else self.names)

    @property
    def depth(self) -> int:
        return backbone(self.model).geometry.depth

    def see(self, picture: Image.Image) -> Sight:
        """Through the model's own transform."""
        image = self.transform(picture)
        # The same crop at the page's own size: what the model sees is often too coarse to look at.
        closer = image if self.finer is None else self.finer(picture)
        grid = backbone(self.model).geometry.grid
        shown = fitted(as_picture(closer, self.model), grid, SHOWN)
        return Sight(image[None], as_link(shown))


def as_link(picture: Image.Image) -> str:
    """A picture as a data URL: no file is written, no second request needed."""
    held = io.BytesIO()
    picture.save(held, "JPEG", quality=_QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode()


def examples() -> list[tuple[str, Image.Image]]:
    """Generated pictures, each with what it shows."""
    found = []
    for number, clutter in enumerate(_CLUTTER[:_EXAMPLES]):
        images, labels = demo.pictures(1, _SEED, first=number, clutter=clutter)
        pixels = ((images[0] + 1) * 127.5).round().to(torch.uint8)
        picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        found.append((f"digit {labels.item()}", picture))
    return found
