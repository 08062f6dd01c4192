"""Does an exported model answer as the torch model does?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

#: A choice between two tokens that score alike may fall otherwise in another runtime, and so may
#: all that follows for that image: of most images the outputs must be the same but for rounding.
ROUNDING = 1e-3
#: … and of these shares of all images the answer.
SAME, SAME_INT8 = 0.9, 0.5


@dataclass(frozen=True)
class Agreement:
    """Two models' outputs on the same images."""

    images: int
    largest: float  # difference of two outputs
    typical: float  # the same of the image in the middle, as a share of its outputs' range
    same: float  # share of the images with the same answer

    def refusal(self, int8: bool) -> str | None:
        """Why the two do not agree, if so."""
        needed = SAME_INT8 if int8 else SAME
        if not self.same >= needed:
            return (
                f"the answers are the same for {self.same:.0%} of {self.images} images, "
                f"and should be for {needed:.0%}"
            )
        if not int8 and not self.typical <= ROUNDING:
            return (
                f"the outputs differ by up to {self.largest:.2g}, and typically by "
                f"{self.typical:.2g} of their range: more than rounding"
            )
        return None


def agreement(wanted: Tensor, came: Tensor) -> Agreement:
    """
    >>> import torch
    >>> wanted = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    >>> agreement(wanted, wanted + torch.tensor([0.0, 0.5])).largest
    0.5
    """
    if wanted.shape != came.shape:
        raise ValueError(f"outputs of {tuple(came.shape)} came, {tuple(wanted.shape)} were wanted")
    wanted, came = (each.double().flatten(1) for each in (wanted, came))
    apart = (wanted - came).abs().amax(dim=1)
    spread = (wanted.amax(dim=1) - wanted.amin(dim=1)).clamp_min(1e-12)
    same = wanted.argmax(dim=1) == came.argmax(dim=1)
    return Agreement(
        len(wanted),
        apart.max().item(),
        (apart / spread).median().item(),
        same.double().mean().item(),
    )
