"""What the benchmarks share: their options, the real models, the images, the file of the rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from zerotprune.backbones import backbone
from zerotprune.data.images import ImageDataset, batches, check_classes, open_data
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.shapes import Batch

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
    """Return a parser described by the first line of a module's docstring."""
    return argparse.ArgumentParser(description=(about or "").partition("\n")[0])


def measuring(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of everything that is measured and written down."""
    made = parser(about)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--csv", type=Path, default=RESULTS, help="add the rows to this file")
    return made


def measuring_images(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of everything that runs real models on real images."""
    made = measuring(about)
    add_shared(made)
    made.add_argument("--batch", type=int, default=100)
    return made


def add_shared(to: argparse.ArgumentParser) -> None:
    to.add_argument("--shared", type=Path, default=Path("../shared"), help="weights, images")
    to.add_argument("--limit", type=int, help="only so many images, to try it out")


def add_speed(to: argparse.ArgumentParser) -> None:
    to.add_argument("--speed-batch", type=int, default=512, help="images at a time")
    to.add_argument("--rounds", type=int, default=15, help="samples of each time")


def add_any_model(to: argparse.ArgumentParser) -> None:
    to.add_argument("--model", help="any classifier, in place of the two of --shared")
    to.add_argument("--weights", type=Path, help="its weights; the library's own if left out")
    to.add_argument("--size", type=int, help="side of its images, if not its own")
    to.add_argument("--data", type=Path, help="its labeled images, a folder for each class")


def parsed(by: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments and check that the rows can be written."""
    chosen = by.parse_args()
    records.check_rows_fit(chosen.csv)
    return chosen


def real_model(name: str, chosen: argparse.Namespace) -> nn.Module:
    """Load a model whose weights are in --shared, at the image size that all share."""
    return load(name, weights=weights_of(name, chosen), size=SIZE)


def weights_of(name: str, chosen: argparse.Namespace) -> Path:
    shared: Path = chosen.shared
    return shared / "weights" / MODELS.get(name, f"{name}.safetensors")


class Bench:
    """An ImageNet model on its device and its images; each folder is decoded once."""

    def __init__(self, name: str, chosen: argparse.Namespace) -> None:
        self.name, self.chosen = name, chosen
        self._model = self._loaded()
        self._batches: dict[str, list[Batch]] = {}

    def _loaded(self) -> nn.Module:
        return real_model(self.name, self.chosen)

    @property
    def model(self) -> nn.Module:
        """The model, on its device from the first access on: decoding forks before CUDA is up."""
        return self._model.to(self.chosen.device)

    def batches(self, *folders: str) -> list[Batch]:
        """Return the batches of these folders of --shared, decoded once."""
        for folder in folders:
            if folder not in self._batches:
                say(f"{self.name}: decoding {folder}")
                self._batches[folder] = self._decoded(folder)
        return [batch for folder in folders for batch in self._batches[folder]]

    def _decoded(self, folder: str) -> list[Batch]:
        chosen = self.chosen
        return decoded(self._model, chosen.shared / folder, chosen.batch, chosen.limit)

    def read(self, *folders: str) -> Iterable[Batch]:
        """Return the same batches for one pass."""
        return self.batches(*folders)

    def some(self, count: int, *folders: str) -> Tensor:
        """Return some images on the device, for methods whose cost depends on them."""
        return spread(self.batches(*folders), count).to(self.chosen.device)

    def data(self, *folders: str) -> str:
        """Return the name of these images in the rows."""
        return " + ".join(folders)


class CustomBench(Bench):
    """Any classifier on a folder of images (--model, --weights, --data). All tables see the same
    images, read anew for each table: there may be 50,000."""

    IN_MEMORY = 4096  # images for what needs them in memory

    def __init__(self, chosen: argparse.Namespace) -> None:
        if chosen.data is None:
            raise SystemExit("--model needs --data, a folder of labeled images")
        super().__init__(chosen.model, chosen)
        self._dataset = self._opened(chosen.limit)
        outputs = backbone(self._model).outputs
        if not outputs:
            raise SystemExit(f"{chosen.model} has no classifier head")
        check_classes(self._dataset, outputs)

    def _loaded(self) -> nn.Module:
        chosen = self.chosen
        return load(chosen.model, weights=chosen.weights, pretrained=chosen.weights is None,
                    size=chosen.size)  # fmt: skip

    def _opened(self, limit: int | None) -> ImageDataset:
        transform = backbone(self._model).transform()
        return open_data(self.chosen.data, transform=transform, limit=limit)

    def _decoded(self, folder: str) -> list[Batch]:
        """Those to choose on are others than those to report on."""
        place = self.chosen.tune if folder == TUNE else self.chosen.data
        if place is None:
            raise SystemExit("--model needs --tune here: other images than those of --data")
        limit = min(self.IN_MEMORY, self.chosen.limit or self.IN_MEMORY)
        return decoded(self._model, place, self.chosen.batch, limit)

    def read(self, *folders: str) -> Iterable[Batch]:
        del folders
        workers = min(16, os.cpu_count() or 1)
        return batches(self._dataset, self.chosen.batch, workers=workers, report=say)

    def some(self, count: int, *folders: str) -> Tensor:
        del folders
        few = self._opened(min(count, len(self._dataset)))
        return spread(list(batches(few, count, report=say)), count).to(self.chosen.device)

    def data(self, *folders: str) -> str:
        del folders
        return str(self.chosen.data.name)


def benches(names: Iterable[str], chosen: argparse.Namespace) -> Iterable[Bench]:
    """Yield the model of --model, or those of --shared one after the other."""
    if getattr(chosen, "model", None) is not None:
        return [CustomBench(chosen)]
    return (Bench(name, chosen) for name in names)


def say(line: str) -> None:
    """Print at once, even into a file."""
    print(line, flush=True)


def decoded(
    model: nn.Module,
    folder: Path,
    batch: int = 100,
    limit: int | None = None,
    workers: int | None = None,
) -> list[Batch]:
    """Decode a folder's images by the model's own transform, with one process per core."""
    images = open_data(folder, transform=backbone(model).transform(), limit=limit)
    if workers is None:
        workers = min(16, os.cpu_count() or 1)
    return list(batches(images, batch, workers=workers, strict=True, report=print))


def spread(batches: list[Batch], count: int) -> Tensor:
    """Pick images from all over the data: one class alone would mislead ATS's budget."""
    images = [image for batch, _, _ in batches for image in batch]
    step = max(1, len(images) // count)
    return torch.stack(images[::step][:count])
