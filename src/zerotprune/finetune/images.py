"""Images as a training sees them: in an order and an augmentation of each epoch's own chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..batching import Batch
from ..data.images import ImageDataset, batches
from ..data.sources import class_folders


@dataclass
class ShownImages(ImageDataset):
    """Images through a transform that draws by chance: the same for the same seed, epoch and
    image, whoever decodes it and after whichever others."""

    seed: int = 0
    epoch: int = 0

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        with _chance(self.seed, self.epoch, at):
            return super().__getitem__(at)


@contextmanager
def _chance(*of: int) -> Iterator[None]:
    """Draws inside depend on the numbers alone, and those outside do not know of them: timm draws
    from all three generators that there are."""
    drawn = np.random.SeedSequence(of).generate_state(3)
    held = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(int(drawn[0]))
    np.random.seed(int(drawn[1]))
    torch.default_generator.manual_seed(int(drawn[2]))
    try:
        yield
    finally:
        random.setstate(held[0])
        np.random.set_state(held[1])
        torch.set_rng_state(held[2])


@dataclass(frozen=True)
class Feed:
    """The batches of every epoch, or one process's share of them: all shares are of one size."""

    images: ShownImages
    batch: int
    report: Callable[[str], None]
    workers: int = 0
    strict: bool = False
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if len(self.images) < self.world:
            raise ValueError(
                f"{self.images.name} has fewer images than there are processes: {len(self.images)}"
            )

    @property
    def steps(self) -> int:
        """Batches of an epoch. Images that fill no batch wait for another epoch."""
        return max(1, len(self.images) // (self.batch * self.world))

    @property
    def share(self) -> int:
        """Images of an epoch, of this process."""
        return min(self.steps * self.batch, len(self.images) // self.world)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of one epoch, counted from 0."""
        drawn = np.random.SeedSequence((self.images.seed, number)).generate_state(1)
        order = np.random.default_rng(drawn).permutation(len(self.images)).tolist()
        shown = replace(self.images, epoch=number)
        found: Iterator[Batch] = batches(
            shown, self.batch, report=self.report, workers=self.workers,
            # Processes that see different numbers of batches would wait for each other for ever.
            strict=self.strict or self.world > 1, rank=self.rank, world=self.world,
            order=order[: self.share * self.world],
        )  # fmt: skip
        for images, labels, _ in found:
            yield images, labels


def check_pair(train: ImageDataset, val: ImageDataset) -> None:
    """Refuse data that nothing can be learned from, or that is about different classes."""
    if train.classes < 2:
        raise ValueError(f"{train.name} has a single class: there is nothing to tell apart")
    folders, others = class_folders(train.name), class_folders(val.name)
    if folders is not None and others is not None and folders != others:
        odd = sorted(set(folders) ^ set(others))[0]
        has, lacks = (train.name, val.name) if odd in folders else (val.name, train.name)
        raise ValueError(f"the class {odd} is in {has} and not in {lacks}: both need the same ones")
    if train.exact and val.exact and train.classes != val.classes:
        raise ValueError(
            f"{train.name} has {train.classes} classes, {val.name} has {val.classes}: both need "
            "the same ones"
        )
    if val.classes > train.classes:
        raise ValueError(
            f"{val.name} has at least {val.classes} classes, {train.name} has {train.classes}"
        )


def seen_in_training(train: ImageDataset, val: ImageDataset) -> int:
    """How many files of the one are in the other. Rows of a data set are none: they have the same
    numbers in all of its parts."""
    both = set(train.paths).intersection(val.paths)
    return sum(Path(path).exists() for path in both)
