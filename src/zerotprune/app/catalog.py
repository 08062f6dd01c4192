"""What can be chosen on the page: models, and example images that suit each of them."""

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
from ..show.figure import LARGEST, as_image, photo_url

BUILT_IN = DEMO
_SEED = 7
_CLUTTER = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.35, 0.35)  # one value per example

Example = tuple[str, Image.Image]  # what it shows, and the image


@dataclass(frozen=True)
class ModelInput:
    """An image as one model sees it and as the page shows it."""

    tensor: Tensor  # (1, 3, height, width)
    url: str  # the same crop as a data URL, as fine as the image allows


@dataclass(frozen=True)
class CatalogEntry:
    """A model under the name that it has on the page.

    Args:
        name: For the list of models.
        model: The unpruned model.
        class_names: Default: those that the model's data set is known to have.
        custom_weights: Whether the weights are not timm's pretrained ones.
    """

    name: str
    model: nn.Module
    class_names: Sequence[str] | None = None
    custom_weights: bool = False

    def __post_init__(self) -> None:
        backbone(self.model)  # refuses a model that cannot be pruned

    @cached_property
    def unpruned_gmacs(self) -> float:
        return gmacs(self.model)

    @cached_property
    def labels(self) -> list[str]:
        if self.class_names is not None:
            return list(self.class_names)
        return list(backbone(self.model).class_names())

    def prepare(self, image: Image.Image) -> ModelInput:
        """Apply the model's own transform."""
        vit = backbone(self.model)
        values = visible = vit.transform()(image)
        rows, cols = vit.geometry.grid
        if rows == cols:  # show the same crop at a higher resolution than the model sees
            visible = vit.transform(LARGEST)(image)
        return ModelInput(values[None], photo_url(as_image(visible, self.model)))


class Catalog:
    """The models and example images.

    The built-in model reads digits. All other models get photographs, or digits if there are none.
    """

    def __init__(
        self,
        entries: Sequence[CatalogEntry],
        digits: Sequence[Example],
        photographs: Sequence[Example] = (),
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.examples = [*digits, *photographs]
        self._num_digits = len(digits)
        self._prepared: dict[int, dict[str, ModelInput]] = {}

    @property
    def opening(self) -> str:
        """The model that the page opens with: the first that the user named, if any."""
        return next((name for name in self.entries if name != BUILT_IN), BUILT_IN)

    def examples_for(self, name: str) -> range:
        """Return the indices of the examples that suit a model."""
        count = len(self.examples)
        if name == BUILT_IN or self._num_digits == count:
            return range(self._num_digits)
        return range(self._num_digits, count)

    def entry(self, name: object) -> CatalogEntry:
        """Return a model of the catalog. No other name is ever looked up."""
        if not isinstance(name, str) or name not in self.entries:
            raise ValueError(f"unknown model; the models are {', '.join(self.entries)}")
        return self.entries[name]

    def prepare(self, image: Image.Image) -> dict[str, ModelInput]:
        """Prepare an image for every model, by name."""
        return {name: entry.prepare(image) for name, entry in self.entries.items()}

    def prepare_example(self, index: int) -> dict[str, ModelInput]:
        if index not in self._prepared:
            self._prepared[index] = self.prepare(self.examples[index][1])
        return self._prepared[index]


def generate_examples() -> list[Example]:
    """Draw digits for the built-in model."""
    examples = []
    for number, clutter in enumerate(_CLUTTER):
        images, labels = demo.images(1, _SEED, first=number, clutter=clutter)
        examples.append((f"digit {labels.item()}", as_image(images[0])))
    return examples
