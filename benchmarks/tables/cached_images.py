"""Keep images on the device and augment them there by a crop and a flip: cheap for many runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.inputs import SIZE
from zerotprune.backbones import backbone
from zerotprune.data.images import batches, open_data

#: smallest share of an image that a crop shows, and the largest aspect ratio
LEAST, STRETCH = 0.35, 4 / 3


@dataclass(frozen=True)
class CachedImages:
    """Batches of every epoch, as `zerotprune.finetune.images.Feed` reads them from files."""

    pixels: Tensor  # bytes: images, channels, height, width
    labels: Tensor
    mean: Tensor
    std: Tensor
    batch: int
    seed: int = 0

    @property
    def steps(self) -> int:
        return max(1, len(self.labels) // self.batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels, shuffled and cropped by this epoch's seed."""
        dice = np.random.default_rng((self.seed, number))
        order = torch.from_numpy(dice.permutation(len(self.labels))).to(self.labels.device)
        for step in range(self.steps):
            chosen = order[step * self.batch : (step + 1) * self.batch]
            shown = cropped(self.pixels[chosen].float() / 255, dice)
            yield (shown - self.mean) / self.std, self.labels[chosen]


def cropped(images: Tensor, dice: np.random.Generator) -> Tensor:
    """Return a random crop of each image at the models' size, half of them flipped."""
    count = len(images)
    side = np.sqrt(dice.uniform(LEAST, 1, count))
    stretch = np.sqrt(STRETCH) ** dice.uniform(-1, 1, count)
    width, height = (np.minimum(side * by, 1) for by in (stretch, 1 / stretch))
    theta = np.zeros((count, 2, 3), dtype=np.float32)
    theta[:, 0, 0] = width * np.where(dice.random(count) < 0.5, -1, 1)
    theta[:, 1, 1] = height
    theta[:, 0, 2] = (1 - width) * dice.uniform(-1, 1, count)
    theta[:, 1, 2] = (1 - height) * dice.uniform(-1, 1, count)
    place = torch.from_numpy(theta).to(images.device)
    grid = F.affine_grid(place, [count, 3, SIZE, SIZE], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def load_cached(
    model: nn.Module, folder: Path, device: str, batch: int, limit: int | None, seed: int
) -> CachedImages:
    """Decode the images of a folder once; all must have one size."""
    images = open_data(folder, limit=limit)
    read = list(batches(images, 256, strict=True, report=print))
    pixels = torch.cat([(shown * 255).round().byte() for shown, _, _ in read]).to(device)
    labels = torch.cat([labels for _, labels, _ in read]).to(device)
    mean, std = (torch.tensor(values, device=device)[:, None, None]
                 for values in backbone(model).normalization)  # fmt: skip
    return CachedImages(pixels, labels, mean, std, min(batch, len(labels)), seed)
