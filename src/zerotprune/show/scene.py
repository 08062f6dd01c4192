"""A scene: all that a drawing tells of some images, whatever it is drawn into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor, nn

from ..budgets.adaptive import measured_gmacs
from ..files import printable
from ..pruning import gmacs
from ..schedule import Schedule
from ..surgery import sharing_copy
from .palette import Mark
from .pixels import as_image
from .story import Story, name_marks, tell

BATCH = 16


@dataclass(frozen=True)
class Scene:
    """Images as the model sees them, and their stories."""

    title: str
    about: str
    images: list[Image.Image]
    stories: list[Story]
    captions: list[str]
    lines: bool = False  # from each similar patch to its partner

    @property
    def steps(self) -> int:
        """Stages of the image that has most of them."""
        return max((len(story.stages) for story in self.stories), default=0)

    def legend(self, outcome: bool = False) -> dict[Mark, str]:
        """What the marks that occur mean; in an outcome, nothing was dropped before."""
        views = [view for story in self.stories
                 for view in ([story.outcome()] if outcome else story.stages)]  # fmt: skip
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
) -> Scene:
    """The scene of images that have been through the model's transform."""
    stories: list[Story] = []
    for part in images.split(BATCH):
        stories += tell(model, part, schedule, heads=heads, names=names)
    full, cost = gmacs(model), count_gmacs(model, schedule, images)
    about = f"{full:.3f} → {cost:.3f} GMACs ({percent(cost / full)}), nothing trained"
    shown = [as_image(image, model) for image in images]
    told = [printable(caption) for caption in captions]
    return Scene(printable(title), about, shown, stories, told, lines)


def count_gmacs(model: nn.Module, schedule: Schedule, images: Tensor) -> float:
    """What the pruned model costs; where that depends on the image, the mean over these."""
    if not schedule.method.adaptive:
        return gmacs(model, schedule)
    return measured_gmacs(sharing_copy(model), schedule, images)


def percent(share: float) -> str:
    """With a digit more where it would read 0 or, of less than all, 100."""
    whole = 0.0095 <= share < 0.995 or share >= 0.9995
    return f"{100 * share:.{0 if whole else 1}f} %"
