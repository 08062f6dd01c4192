"""Images with labels from disk, through the model's own transform."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..batching import Batch
from ..interrupts import kept_from_children, says_nothing
from .decoding import BadImage, decode
from .sources import Item, find

Transform = Callable[[Image.Image], Tensor]


@dataclass
class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Labelled images in a fixed order.

    `exact` is False where labels came as bare indices: there are at least `classes` classes then.
    """

    name: str
    items: list[Item]
    classes: int
    exact: bool
    transform: Transform

    @property
    def paths(self) -> list[str]:
        return [item.path for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        path, read, label = self.items[at]
        try:
            data = read()
        except OSError as error:
            raise BadImage(f"cannot read {path}: {error.strerror or error}") from None
        return self.transform(decode(io.BytesIO(data), path)), label


def open_data(
    spec: str | Path,
    *,
    mapping: Path | None = None,
    split: str = "validation",
    limit: int | None = None,
    transform: Transform | None = None,
    labelled: bool = True,
) -> ImageDataset:
    """The images that `spec` names; a `limit` takes that many of them, evenly spread.

    A folder, `.tar` shards (a file, a glob, `{000..123}`, a folder of them), or `hf:NAME`, of
    which `split`. Without a transform images keep their sizes, with values in [0, 1]. With
    `labelled` False a folder may hold images in any order, and nothing is said of what they show.
    """
    name = str(spec)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    items, classes = find(name, mapping, split, labelled)
    if not items:
        raise ValueError(f"no images in {name}")
    for item in items:
        if item.label < 0:
            raise ValueError(f"the label of {item.path} is {item.label}, which is no class index")
    known = max(item.label for item in items) + 1 if classes is None else classes
    if limit is not None and limit < len(items):
        items = [items[number * len(items) // limit] for number in range(limit)]
    return ImageDataset(name, items, known, classes is not None, transform or _unchanged)


def _unchanged(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def check_classes(dataset: ImageDataset, outputs: int) -> None:
    """Refuse data whose classes cannot be those of the model's head."""
    count = dataset.classes
    if count > outputs or (dataset.exact and count != outputs):
        held = f"{count}" if dataset.exact else f"at least {count}"
        raise ValueError(f"the data has {held} classes, the model's head has {outputs}")


def batches(
    dataset: ImageDataset,
    batch_size: int,
    *,
    report: Callable[[str], None],
    workers: int = 0,
    strict: bool = False,
    rank: int = 0,
    world: int = 1,
    skipped: list[str] | None = None,
    order: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """(images, labels, indices) in order; process `rank` of `world` gets every world-th image.
    Another `order` may be given, of all images or of some.

    A bad image is left out of its batch, told to `report` and named in `skipped`; with `strict`
    it raises `BadImage`. Nothing is padded: shares may differ by one image, or be empty.
    """
    if batch_size < 1 or workers < 0:
        raise ValueError(f"there are no batches of {batch_size} by {workers} workers")
    if not 0 <= rank < world:
        raise ValueError(f"rank must be from 0 to {world - 1}, got {rank}")
    places = range(len(dataset)) if order is None else order
    loader: DataLoader[Any] = DataLoader(
        places[rank::world],  # type: ignore[arg-type]  # a sequence is enough
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=partial(_collect, dataset),
        worker_init_fn=says_nothing,
        generator=torch.Generator(),  # else each pass would move the global random state
    )

    def readable() -> Iterator[Batch]:
        for batch, failures in read_loader(loader):
            for at, message in failures.items():
                if strict:
                    raise BadImage(message)
                if skipped is not None:
                    skipped.append(dataset.items[at].path)
                report(message)
            if batch is not None:
                yield batch

    return readable()  # a generator of its own: mistakes are told at once, not with the first batch


def read_loader(loader: DataLoader[Any]) -> Iterator[Any]:
    """What the loader gives; that one of its processes was killed is said in one sentence."""
    with kept_from_children() if loader.num_workers else nullcontext():
        turns = iter(loader)
    try:
        yield from turns
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ChildProcessError(
            "a process that decodes images was killed, perhaps for want of memory: try fewer "
            "--workers"
        ) from None


def _collect(dataset: ImageDataset, indices: list[int]) -> tuple[Batch | None, dict[int, str]]:
    """Failures are values here: an exception leaves a worker as a page of traceback."""
    good, failures = list[tuple[Tensor, int, int]](), dict[int, str]()
    for at in indices:
        try:
            good.append((*dataset[at], at))
        except BadImage as error:
            failures[at] = str(error)
    if not good:
        return None, failures
    images, labels, kept = zip(*good, strict=True)
    return (torch.stack(images), torch.tensor(labels), torch.tensor(kept)), failures
