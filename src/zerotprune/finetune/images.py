"""Training images: every epoch has its own random order and augmentation."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.images import ImageDataset, batches
from ..shapes import Batch

_HASHED = 100  # images of a data set at most


@dataclass
class ShownImages(ImageDataset):
    """Images with a random transform that depends on seed, epoch and image alone.

    It does not depend on which process decodes an image, or after which others.
    """

    seed: int = 0
    epoch: int = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with _seeded(self.seed, self.epoch, index):
            return super().__getitem__(index)


@contextmanager
def _seeded(*numbers: int) -> Iterator[None]:
    """Seed all three global generators, which timm draws from, and restore them afterwards."""
    seeds = np.random.SeedSequence(numbers).generate_state(3)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(int(seeds[0]))
    np.random.seed(int(seeds[1]))
    torch.default_generator.manual_seed(int(seeds[2]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@dataclass(frozen=True)
class Feed:
    """The batches of every epoch, or one process's share of them. All shares have equal size."""

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
                f"{self.images.name} has {len(self.images)} images: expected at least one for each "
                f"of {self.world} processes"
            )

    @property
    def steps(self) -> int:
        """Batches per epoch. Images that do not fill a batch are left for other epochs."""
        return max(1, len(self.images) // (self.batch * self.world))

    @property
    def share(self) -> int:
        """Images per epoch for this process."""
        return min(self.steps * self.batch, len(self.images) // self.world)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels of one epoch, counted from 0."""
        seed = np.random.SeedSequence((self.images.seed, number)).generate_state(1)
        order = np.random.default_rng(seed).permutation(len(self.images)).tolist()
        shown = replace(self.images, epoch=number)
        stream: Iterator[Batch] = batches(
            shown, self.batch, report=self.report, workers=self.workers,
            # Processes with different numbers of batches would wait for each other forever.
            strict=self.strict or self.world > 1, rank=self.rank, world=self.world,
            order=order[: self.share * self.world],
        )  # fmt: skip
        for images, labels, _ in stream:
            yield images, labels


def count_overlap(train: ImageDataset, val: ImageDataset) -> int:
    """Count the files that are in both. Rows of a dataset do not count: every split has a row 0."""
    both = set(train.paths).intersection(val.paths)
    return sum(Path(path).exists() for path in both)


def identify(images: ImageDataset) -> str:
    """Name the images by folder, number, and a hash of all names and labels and of some images.

    Hashing all of them would take as long as an epoch.
    """
    digest = hashlib.sha256()
    for path, _, label in images.items:
        digest.update(f"{label} {Path(path).name}\n".encode("utf-8", "surrogateescape"))
    for item in images.items[:: -(-len(images) // _HASHED)]:
        try:
            digest.update(item.read())
        except OSError:
            digest.update(b"unreadable")
    return f"{Path(images.name).name}, {len(images)} images {digest.hexdigest()[:16]}"
