"""Scenes: the images to draw, as the model sees them, and their stories."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from torch import Tensor, nn

from ..budgets.solving import measured_gmacs
from ..data.images import decode, open_data, upright
from ..data.sources import Item
from ..pruning import gmacs
from ..safety.files import bytes_of, printable
from ..schedule import Schedule
from ..surgery import sharing_copy
from .figure import as_image
from .story import Mark, Story, name_marks, tell

BATCH = 16
MOST = 120  # images in one drawing


@dataclass(frozen=True)
class Scene:
    """Everything that a drawing shows, in any format."""

    title: str
    about: str
    images: list[Image.Image]
    stories: list[Story]
    captions: list[str]
    lines: bool = False  # from each similar patch to its partner
    panels: int | None = None  # at most this many for each image; None for all stages

    @property
    def steps(self) -> int:
        """Return the largest number of stages of any image."""
        return max((len(story.stages) for story in self.stories), default=0)

    def legend(self, outcome: bool = False) -> dict[Mark, str]:
        """Describe the marks that occur in the stages, or in the outcome."""
        views = [
            view
            for story in self.stories
            for view in ([story.outcome()] if outcome else story.stages)
        ]
        return {mark: text for mark, text in name_marks(views).items() if mark != Mark.KEPT}


def make_scene(
    title: str,
    model: nn.Module,
    schedule: Schedule,
    images: Tensor,
    captions: list[str],
    *,
    names: Sequence[str] | None = None,
    lines: bool = False,
    heads: bool = False,
    panels: int | None = None,
) -> Scene:
    """Run the model, unpruned and pruned, on images that have been through its transform.

    Args:
        title: The headline of the drawing.
        model: The model, which is not changed.
        schedule: What to prune.
        images: A batch of any size.
        captions: One for each image.
        names: Class names; None for the model's own.
        lines: Draw lines from similar patches to their partners.
        heads: Draw what each head votes for.
        panels: Draw at most this many panels for each image.
    """
    stories: list[Story] = []
    for batch in images.split(BATCH):
        stories += tell(model, batch, schedule, heads=heads, names=names)
    full, cost = gmacs(model), count_gmacs(model, schedule, images)
    about = f"{full:.3f} → {cost:.3f} GMACs ({percent(cost / full)}), nothing trained"
    pixels = [as_image(image, model) for image in images]
    printed = [printable(caption) for caption in captions]
    return Scene(printable(title), about, pixels, stories, printed, lines, panels)


def count_gmacs(model: nn.Module, schedule: Schedule, images: Tensor) -> float:
    """Return the cost of the pruned model; if it depends on the image, the mean over `images`."""
    if not schedule.method.adaptive:
        return gmacs(model, schedule)
    return measured_gmacs(sharing_copy(model), schedule, images)


def percent(share: float) -> str:
    """Format a share, with one more digit where it would round to 0 or to 100.

    >>> percent(0.5), percent(0.004), percent(0.996)
    ('50 %', '0.4 %', '99.6 %')
    """
    whole = 0.0095 <= share < 0.995 or share >= 0.9995
    return f"{100 * share:.{0 if whole else 1}f} %"


class NamedImage(NamedTuple):
    """An image and its name."""

    name: str
    image: Image.Image


def load_images(
    paths: Sequence[Path], limit: int | None = None, most: int | None = MOST
) -> list[NamedImage]:
    """Load files, folders and shards of images; `limit` takes that many, evenly spread."""
    items = [
        item
        for path in paths
        for item in (open_data(path, labeled=False).items if _holds_images(path) else [_file(path)])
    ]
    if limit is not None:
        count = min(limit, len(items))
        items = [items[number * len(items) // count] for number in range(count)]
    if most is not None:
        check_count(len(items), most)
    return [NamedImage(printable(Path(item.path).name), load_upright(item)) for item in items]


def _holds_images(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".tar"


def _file(path: Path) -> Item:
    if not path.exists():
        raise FileNotFoundError(f"no image at {path}")
    return Item(str(path), partial(bytes_of, path), 0)


def check_count(count: int, most: int = MOST) -> None:
    """Raise ValueError if there are too many images for one drawing."""
    if count > most:
        raise ValueError(f"{count} images are too many for one drawing: --limit takes up to {most}")


def load_upright(item: Item) -> Image.Image:
    """Load an image and turn it as its EXIF orientation says."""
    return upright(decode(io.BytesIO(item.read()), item.path))
