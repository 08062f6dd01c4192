"""What the page has to offer: models, and example images that suit each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from PIL import Image
from torch import Tensor, nn

from ..backbones import backbone
from ..data import demo
from ..data.models import DEMO
from ..pruning import gmacs
from ..show.pixels import LARGEST, as_image, photo_url

BUILT_IN = DEMO
_SEED = 7
_CLUTTER = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.35, 0.35)  # of each example


@dataclass(frozen=True)
class ModelInput:
    """An image as one model sees it, and as the page shows it."""

    tensor: Tensor  # (1, 3, height, width)
    url: str  # the same crop as a data URL, in the best quality the image has


@dataclass(frozen=True)
class CatalogEntry:
    """A model by the name that it has on the page."""

    name: str
    model: nn.Module
    names: Sequence[str] | None = None  # of the classes, where whoever started the page gave them
    own_weights: bool = False

    def __post_init__(self) -> None:
        backbone(self.model)  # refuses what cannot be pruned, at the start

    @cached_property
    def unpruned(self) -> float:
        """GMACs of the model as it is."""
        return gmacs(self.model)

    @cached_property
    def labels(self) -> list[str]:
        return list(backbone(self.model).class_names() if self.names is None else self.names)

    def prepare(self, image: Image.Image) -> ModelInput:
        """Through the model's own transform."""
        vit = backbone(self.model)
        values = shown = vit.transform()(image)
        rows, cols = vit.geometry.grid
        if rows == cols:  # the same crop, finer: what the model sees is often too coarse to look at
            shown = vit.transform(LARGEST)(image)
        return ModelInput(values[None], photo_url(as_image(shown, self.model)))


class Catalog:
    """All that can be chosen on the page. The built-in model reads digits; the others know
    photographs, and where there are none they get the digits too."""

    def __init__(
        self,
        entries: Sequence[CatalogEntry],
        digits: Sequence[tuple[str, Image.Image]],
        photographs: Sequence[tuple[str, Image.Image]] = (),
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.examples = [*digits, *photographs]
        self._digits = len(digits)
        self._prepared: dict[int, dict[str, ModelInput]] = {}

    @property
    def opening(self) -> str:
        """The model that the page opens with: one that was asked for, if any was."""
        return next((name for name in self.entries if name != BUILT_IN), BUILT_IN)

    def offered(self, name: str) -> range:
        """The examples that suit a model, by their numbers."""
        count = len(self.examples)
        if name == BUILT_IN or self._digits == count:
            return range(self._digits)
        return range(self._digits, count)

    def entry(self, name: object) -> CatalogEntry:
        """A name that is not on the list is never looked up anywhere."""
        if not isinstance(name, str) or name not in self.entries:
            raise ValueError(f"the models are {', '.join(self.entries)}")
        return self.entries[name]

    def prepare(self, image: Image.Image) -> dict[str, ModelInput]:
        """The image for every model, by its name."""
        return {name: entry.prepare(image) for name, entry in self.entries.items()}

    def prepare_example(self, at: object) -> dict[str, ModelInput]:
        if not isinstance(at, int) or not 0 <= at < len(self.examples):
            raise ValueError("there is no such example")
        if at not in self._prepared:
            self._prepared[at] = self.prepare(self.examples[at][1])
        return self._prepared[at]


def generate_examples() -> list[tuple[str, Image.Image]]:
    """Images for the built-in model, each with what it shows."""
    drawn = (
        demo.images(1, _SEED, first=number, clutter=clutter)
        for number, clutter in enumerate(_CLUTTER)
    )
    return [(f"digit {labels.item()}", as_image(images[0])) for images, labels in drawn]
