"""The built-in demo: a small trained Vision Transformer, the cluttered images that it reads, and a
few photographs for other models.

Each image is 112 x 112 RGB and shows one whole handwritten digit (scikit-learn's bundled set)
somewhere in generated clutter: smooth noise, gratings, arcs and cut pieces of other digits.
Images come ready for the model, with values in [-1, 1]; ``(x + 1) / 2`` is what to look at.
An image depends on its seed, split and number alone, not on the batch it is made in.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from .images import decode

Split = Literal["train", "test"]

SIDE = 112
WEIGHTS = Path(__file__).with_name("demo.safetensors")
PHOTOGRAPHS = Path(__file__).with_name("photographs")
#: All free to use (see the folder's README). The page opens with the first.
PHOTOGRAPH_NAMES = ("cat", "espresso", "tripod", "rocket")

_TEST_DIGITS = 450
_CELLS = 8
_PADDED = _CELLS + 2
_ENLARGED = 4 * _PADDED
_SMALLEST, _LARGEST = 28.0, 60.0
_FRAGMENTS = 5
_ARCS = 7
_GRATINGS = 2
# Drawing is hundreds of small operations: larger blocks launch fewer of them.
_CPU_BLOCK, _GPU_BLOCK = 128, 2048


def images(
    count: int,
    seed: int,
    split: Split = "test",
    device: str | torch.device = "cpu",
    *,
    first: int = 0,
    clutter: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draw images `first` to `first + count - 1` of the endless series of a seed and a split.

    The same arguments give the same images: bit for bit on one device, up to rounding on others.

    Args:
        count: How many images.
        seed: Which series.
        split: "train" and "test" use different handwritten digits.
        device: Where to draw them.
        first: The number of the first image.
        clutter: Scales everything but the digit; the model was trained with 1.

    Returns:
        Images (count, 3, 112, 112), float32 in [-1, 1], and their labels (count,).
    """
    target = torch.device(device)
    block = _CPU_BLOCK if target.type == "cpu" else _GPU_BLOCK
    textures, labels = _digits(split, str(target))
    shown = torch.empty(count, 3, SIDE, SIDE, device=target)
    answers = torch.empty(count, dtype=torch.int64, device=target)
    key = 2 * seed + (split == "test")
    for start in range(0, count, block):
        stop = min(start + block, count)
        dice = _Dice(key, torch.arange(first + start, first + stop, device=target))
        which = dice.below(len(labels))
        shown[start:stop] = _scene(dice, textures, which, clutter)
        answers[start:stop] = labels[which]
    return shown, answers


def untrained() -> nn.Module:
    """Return the demo's vision transformer, pre-norm with 14 x 14 patches, with random weights."""
    from ..backbones.timm import build

    return build(
        [f"digit {number}" for number in range(10)],
        img_size=SIDE,
        patch_size=8,
        num_classes=10,
        embed_dim=96,
        depth=12,
        num_heads=3,
        mlp_ratio=4.0,
        global_pool="token",
    )


def model() -> nn.Module:
    """Return the trained demo model, float32 and in eval mode, on the CPU."""
    from safetensors.torch import load_file

    built = untrained()
    built.load_state_dict({name: value.float() for name, value in load_file(WEIGHTS).items()})
    return built.eval()


class Photograph(NamedTuple):
    """A photograph, and what it shows."""

    name: str
    image: Image.Image


def load_photographs(limit: int | None = None) -> list[Photograph]:
    """Load all photographs, or the first `limit`.

    >>> [photograph.name for photograph in load_photographs(2)]
    ['cat', 'espresso']
    """
    return [
        Photograph(name, decode(PHOTOGRAPHS / f"{name}.jpg")) for name in PHOTOGRAPH_NAMES[:limit]
    ]


class _Dice:
    """Random numbers that depend on key, image number and the order of calls (splitmix64).

    A torch.Generator would tie an image to its batch and its device; a hash of the image's
    number does not.
    """

    def __init__(self, key: int, numbers: Tensor) -> None:
        self.device = numbers.device
        self._state = _mix(numbers + _mix(torch.tensor(key, device=self.device)))
        self._drawn = 0
        self._pool = torch.empty(len(numbers), 0, device=self.device)

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw uniform numbers, shaped (images, *shape)."""
        count = math.prod(shape)
        if count > self._pool.shape[1]:
            self._refill(max(count, 512))
        drawn, self._pool = self._pool[:, :count], self._pool[:, count:]
        return (low + (high - low) * drawn).reshape(-1, *shape)

    def _refill(self, count: int) -> None:
        # Most calls want one number: drawing many at a time saves kernel launches.
        order = torch.arange(self._drawn, self._drawn + count, device=self.device)
        self._drawn += count
        bits = _mix(self._state[:, None] + order * -0x61C8864680B583EB)
        self._pool = _shift_right(bits, 40).float() / 2**24

    def below(self, bound: int) -> Tensor:
        """Draw one whole number per image, from 0 to bound - 1."""
        return (self.between(0.0, 1.0) * bound).long().clamp(max=bound - 1)

    def sign(self, plus: float) -> Tensor:
        """Draw +1 per image with probability `plus`, else -1."""
        return torch.where(self.between(0.0, 1.0) < plus, 1.0, -1.0)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    # torch has no unsigned 64-bit shift: the mask drops the copies of the sign bit.
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * -0x40A7B892E31B1A47
    bits = (bits ^ _shift_right(bits, 27)) * -0x6B2FB644ECCEEE15
    return bits ^ _shift_right(bits, 31)


@lru_cache(maxsize=8)
def _digits(split: Split, device: str) -> tuple[Tensor, Tensor]:
    """Return the split's digits, enlarged smoothly so that they can be drawn at any size."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    images = torch.as_tensor(bundled.images, dtype=torch.float32) / 16
    labels = torch.as_tensor(bundled.target, dtype=torch.int64)
    order = _mix(torch.arange(1, len(labels) + 1)).argsort()
    chosen = order[:_TEST_DIGITS] if split == "test" else order[_TEST_DIGITS:]
    padded = F.pad(images[chosen, None], (1, 1, 1, 1))
    large = F.interpolate(padded, size=(_ENLARGED, _ENLARGED), mode="bicubic")
    return large.to(device), labels[chosen].to(device)


def _scene(dice: _Dice, textures: Tensor, which: Tensor, clutter: float) -> Tensor:
    """Draw a block of images: background, then faint clutter, then the digit on top."""
    sign = dice.sign(0.6)
    contrast = dice.between(0.35, 0.6)
    # The background is away from middle gray, which leaves room for the digit's contrast.
    level = 0.5 - sign * dice.between(0.05, 0.22)
    scene = level.view(-1, 1, 1, 1) + clutter * (_noise(dice) + _gratings(dice))
    for _ in range(_ARCS):
        strength = dice.sign(0.5) * dice.between(0.04, 0.28)
        _lay(scene, _arc(dice), clutter * strength, dice)
    for _ in range(_FRAGMENTS):
        other = (which + 1 + dice.below(len(textures) - 1)) % len(textures)
        strength = dice.sign(0.5) * contrast * dice.between(0.25, 0.6)
        piece = _ink(dice, textures[other], dice.between(18.0, 40.0), cut=True)
        _lay(scene, piece, clutter * strength, dice)
    size = _SMALLEST + (_LARGEST - _SMALLEST) * dice.between(0.0, 1.0).double().pow(1.3).float()
    digit = _ink(dice, textures[which], size, cut=False)[:, None]
    tint = dice.between(-0.15, 0.15, 3)
    color = (level + sign * contrast)[:, None] + tint
    scene = torch.lerp(scene, color[:, :, None, None].expand_as(scene), 0.9 * digit)
    return (2 * scene - 1).clamp_(-1, 1)


def _lay(scene: Tensor, mask: Tensor, strength: Tensor, dice: _Dice) -> None:
    color = strength[:, None] * dice.between(0.6, 1.4, 3)
    scene.addcmul_(mask[:, None], color[:, :, None, None])


def _along(dice: _Dice) -> Tensor:
    return torch.arange(SIDE, device=dice.device, dtype=torch.float32) + 0.5


def _direction(turn: Tensor) -> tuple[Tensor, Tensor]:
    # In single precision the last bit would depend on an image's position in its batch.
    exact = turn.double()
    return exact.cos().float(), exact.sin().float()


def _noise(dice: _Dice) -> Tensor:
    """Draw smooth colored noise at several scales, and a fine gray grain."""
    total = torch.zeros((), device=dice.device)
    vivid = dice.between(0.0, 1.0, 1, 1, 1)
    for cells, channels, strongest in ((4, 3, 0.25), (10, 3, 0.25), (28, 3, 0.2), (56, 1, 0.12)):
        grid = dice.between(-1.0, 1.0, channels, cells, cells)
        grid = torch.lerp(grid.mean(1, keepdim=True), grid, vivid) * dice.between(
            0.2 * strongest, strongest, 1, 1, 1
        )
        mode = "bicubic" if cells < 28 else "bilinear"
        total = total + F.interpolate(grid, size=(SIDE, SIDE), mode=mode)
    return total


def _gratings(dice: _Dice) -> Tensor:
    """Draw waves of random pitch and direction that fade away from a random center."""
    along = _along(dice)
    total = torch.zeros((), device=dice.device)
    for _ in range(_GRATINGS):
        cos, sin = _direction(dice.between(0.0, math.pi))
        pitch = dice.between(5.0, 20.0)
        phase, reach = dice.between(0.0, 2 * math.pi), dice.between(20.0, 60.0)
        x = along - dice.between(0.0, SIDE, 1)
        y = along - dice.between(0.0, SIDE, 1)
        pace = 2 * math.pi / pitch
        run = (pace * cos)[:, None] * x + phase[:, None]
        rise = (pace * sin)[:, None] * y
        wave = (run[:, None, :] + rise[:, :, None]).sin()
        wave = wave * (-((x / reach[:, None]) ** 2)).exp()[:, None, :]
        wave = wave * (-((y / reach[:, None]) ** 2)).exp()[:, :, None]
        color = dice.between(-0.16, 0.16, 1) * dice.between(0.4, 1.6, 3)
        total = total + wave[:, None] * color[:, :, None, None]
    return total


def _arc(dice: _Dice) -> Tensor:
    """Draw a thin stroke: at most half of a circle, so that none of them looks like a zero."""
    radius, width = dice.between(8.0, 70.0), dice.between(0.5, 1.8)
    cos, sin = _direction(dice.between(0.0, 2 * math.pi))
    along = _along(dice)
    # The middle of the stroke, not of its circle, is uniform over the image.
    x = along - (dice.between(0.0, SIDE) - radius * cos)[:, None]
    y = along - (dice.between(0.0, SIDE) - radius * sin)[:, None]
    far = ((x**2)[:, None, :] + (y**2)[:, :, None]).sqrt()
    stroke = ((width + 0.5)[:, None, None] - (far - radius[:, None, None]).abs()).clamp_(0, 1)
    span = (cos[:, None] * x)[:, None, :] + (sin[:, None] * y)[:, :, None]
    return stroke * (span > (radius * dice.between(0.0, 0.9))[:, None, None])


def _ink(dice: _Dice, texture: Tensor, size: Tensor, *, cut: bool) -> Tensor:
    """Return how much ink a digit, or a cut piece of one, puts on every pixel."""
    cos, sin = _direction(dice.between(-0.3, 0.3, 1))
    slant = dice.between(-0.3, 0.3, 1)
    along = _along(dice)
    margin = size * 0.55
    x, y = (
        (along - (margin + dice.between(0.0, 1.0) * (SIDE - 2 * margin))[:, None])
        * (2 * _CELLS / _PADDED / size)[:, None]
        for _ in range(2)
    )
    u = (cos * x)[:, None, :] + ((sin + slant) * y)[:, :, None]
    v = (-sin * x)[:, None, :] + (cos * y)[:, :, None]
    bend, phase = dice.between(-0.07, 0.07, 2, 1, 1), dice.between(0.0, 2 * math.pi, 2, 1, 1)
    across = u + bend[:, 0] * (3 * v + phase[:, 0]).sin()
    down = v + bend[:, 1] * (3 * u + phase[:, 1]).sin()
    grid = torch.stack((across, down), dim=-1)
    drawn = F.grid_sample(texture, grid, align_corners=False)[:, 0]
    # A steep ramp about a varying threshold makes crisp strokes of varying thickness.
    inked = (0.5 + 4 * (drawn - dice.between(0.38, 0.55, 1, 1))).clamp_(0, 1)
    if cut:
        cos, sin = _direction(dice.between(0.0, 2 * math.pi, 1, 1))
        inked = inked * (cos * u + sin * v > dice.between(0.0, 0.3, 1, 1))
    return inked
