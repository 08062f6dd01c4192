"""What `zerotprune search` is told of the model and the images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from ..budgets.contenders import method_named
from ..calibrate.calibration import Calibration
from ..data.images import check_classes
from ..data.models import load
from ..search.session import SearchInputs
from .session import Precision
from .subject import Subject, chosen_device

#: methods that act by a schedule's keep, similar and rounds, which is what is searched
METHODS = ("zero-tprune", "zero-tprune-uni", "cls-attention", "average-attention",
           "accumulated-attention", "random")  # fmt: skip


@Parameter(name="*")
@dataclass(frozen=True)
class SearchOptions(Subject):
    """Which model on which images, and what is searched for."""

    labels: bool = True
    "Search by top-1 on the labels; without them, by KL(unpruned ‖ pruned) of the outputs."
    precision: Precision = "float32"
    "Of the model; scores are float32 in any case."
    method: str = "zero-tprune"
    "Or zero-tprune-uni, cls-attention, average-attention, accumulated-attention, random."
    calibration: Path | None = None
    "The VHF range to search with: what `calibrate` wrote."

    def load_inputs(self, seed: int) -> SearchInputs:
        device = chosen_device(self.device)
        if self.method not in METHODS:
            raise ValueError(f"a search is for one of {', '.join(METHODS)}, got {self.method!r}")
        model, method = load(**self.named()), method_named(self.method)
        if self.calibration is not None:
            method = Calibration.load_for(self.calibration, self.model, model).method(method)
        images = self.pictures(model, labelled=self.labels)
        outputs = int(getattr(model, "num_classes", 0))
        if self.labels and outputs:
            check_classes(images, outputs)
        return SearchInputs(
            self.model, self.named(), model, method, images, self.data, self.labels, self.batch,
            device, self.precision, seed, self.strict,
        )  # fmt: skip
