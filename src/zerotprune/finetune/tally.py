"""Loss and accuracy, counted: of an epoch of training so far, and of images to validate on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn


@dataclass
class Tally:
    """Of one epoch so far; on the device, since to ask for a number is to wait for it."""

    images: int = 0
    _loss: Tensor | float = 0.0
    _hits: Tensor | float = 0.0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.images += len(labels)
        self._loss = self._loss + loss.detach() * len(labels)
        self._hits = self._hits + (logits.argmax(dim=-1) == labels).sum()

    @property
    def loss(self) -> float:
        """The mean over the images."""
        return float(self._loss) / max(1, self.images)

    @property
    def top1(self) -> float:
        """In percent, by the labels that the images had before they were mixed."""
        return 100 * float(self._hits) / max(1, self.images)


@torch.no_grad()
def top1(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]], accelerator: Accelerator
) -> float:
    """In percent, over the shares of all processes."""
    counts = torch.zeros(2, device=accelerator.device)
    for images, labels, *_ in batches:
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        with accelerator.autocast():
            found = model(images).argmax(dim=-1)
        counts += torch.stack(((found == labels).sum(), torch.tensor(len(labels)).to(found)))
    hits, seen = accelerator.reduce(counts).tolist()
    if not seen:
        raise ValueError("none of the images to validate on can be read")
    return float(100 * hits / seen)
