"""What the benchmarks share: their options, the real models, the images, the file of the rows."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from zerotprune.backbones import backbone
from zerotprune.batching import Batch
from zerotprune.data.images import batches, open_data
from zerotprune.data.models import load
from zerotprune.measure import records

RESULTS = Path(__file__).with_name("results.csv")
DOCS = RESULTS.parents[1] / "docs"
#: ImageNet models, and the files of their weights in --shared
MODELS = {
    "deit_tiny_patch16_224": "deit_tiny_patch16_224.safetensors",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "vit_tiny_patch16_224.augreg.safetensors",
}
DINOV2 = "vit_small_patch14_dinov2.lvd142m"
SIZE = 224
REPORT = "imagenet/report"  # the images that everything is reported on
TUNE = "imagenet/tune"  # others, on which schedules and forms are chosen


def parser(about: str | None) -> argparse.ArgumentParser:
    """Bare, but described by the first line of a module's docstring."""
    return argparse.ArgumentParser(description=(about or "").partition("\n")[0])


def measuring(about: str | None) -> argparse.ArgumentParser:
    """With the options of all that is measured and written down."""
    made = parser(about)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--csv", type=Path, default=RESULTS, help="add the rows to this file")
    return made


def measuring_images(about: str | None) -> argparse.ArgumentParser:
    """With the options of all that runs real models on real images."""
    made = measuring(about)
    add_shared(made)
    made.add_argument("--batch", type=int, default=100)
    return made


def add_shared(to: argparse.ArgumentParser) -> None:
    to.add_argument("--shared", type=Path, default=Path("../shared"), help="weights, images")
    to.add_argument("--limit", type=int, help="only so many images, to try it out")


def parsed(by: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for, once it is sure that the rows can be written."""
    chosen = by.parse_args()
    records.check_rows_fit(chosen.csv)
    return chosen


def real_model(name: str, chosen: argparse.Namespace) -> nn.Module:
    """One of those that --shared has weights for, at the size of images that all are run at."""
    return load(name, weights=weights_of(name, chosen), size=SIZE)


def weights_of(name: str, chosen: argparse.Namespace) -> Path:
    shared: Path = chosen.shared
    return shared / "weights" / MODELS.get(name, f"{name}.safetensors")


class Bench:
    """An ImageNet model on its device, and its images, each folder of which is decoded once."""

    def __init__(self, name: str, chosen: argparse.Namespace) -> None:
        self.name, self.chosen = name, chosen
        self._model = real_model(name, chosen)
        self._held: dict[str, list[Batch]] = {}

    @property
    def model(self) -> nn.Module:
        """On its device from the first time on: whoever decodes first forks before CUDA is up."""
        return self._model.to(self.chosen.device)

    def held(self, *folders: str) -> list[Batch]:
        """Batches of all these folders of --shared."""
        for folder in folders:
            if folder not in self._held:
                say(f"{self.name}: decoding {folder}")
                chosen = self.chosen
                self._held[folder] = decoded(
                    self._model, chosen.shared / folder, chosen.batch, chosen.limit
                )
        return [batch for folder in folders for batch in self._held[folder]]


def say(line: str) -> None:
    """At once, also where the output goes to a file."""
    print(line, flush=True)


def decoded(
    model: nn.Module,
    folder: Path,
    batch: int = 100,
    limit: int | None = None,
    workers: int | None = None,
) -> list[Batch]:
    """Images of a folder through the model's own transform, by a process for each core."""
    images = open_data(folder, transform=backbone(model).transform(), limit=limit)
    if workers is None:
        workers = min(16, os.cpu_count() or 1)
    return list(batches(images, batch, workers=workers, strict=True, report=print))


def spread(held: list[Batch], count: int) -> Tensor:
    """Some of the images, from all over the data: one class alone would mislead ATS's budget."""
    images = [image for batch, _, _ in held for image in batch]
    step = max(1, len(images) // count)
    return torch.stack(images[::step][:count])
