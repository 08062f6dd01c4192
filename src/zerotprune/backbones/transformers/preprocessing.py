"""transformers' image processors as transforms of PIL images: resize, crop and normalize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Preprocessing:
    """What an image processor does."""

    resize: int | tuple[int, int]  # the shorter side, or height and width
    crop: tuple[int, int] | None  # from the middle
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF
    resample: int = 3  # PIL's number; bicubic

    @classmethod
    def of(cls, model: Any, sides: tuple[int, ...]) -> Preprocessing:
        """Read what was saved with the model; default: values in [-1, 1]."""
        height, width = sides
        processor = saved_processor(model.name_or_path)
        if processor is None:
            return cls((height, width), None)
        size, crop = processor.size or {}, None
        if getattr(processor, "do_center_crop", False):
            crop = _pair(processor.crop_size)
        shorter = size.get("shortest_edge")
        resize = int(shorter) if shorter else _pair(size or {"height": height, "width": width})
        normalizes = getattr(processor, "do_normalize", True)
        mean, std = (
            tuple(getattr(processor, name)) if normalizes else neutral
            for name, neutral in (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3))
        )
        return cls(resize, crop, mean, std, int(getattr(processor, "resample", 3) or 3))

    def at(self, sides: tuple[int, int]) -> Preprocessing:
        """Return the preprocessing for another size, cropping the same share."""
        out = self.crop or self.resize
        if isinstance(out, int) or out == sides:
            return self if out == sides else replace(self, crop=sides)
        if isinstance(self.resize, int):
            scaled = round(self.resize * min(sides) / min(out))
            return replace(self, resize=scaled, crop=sides)
        down, across = (
            round(before * new / old)
            for before, new, old in zip(self.resize, sides, out, strict=True)
        )
        return replace(self, resize=(down, across), crop=self.crop and sides)

    def transform(self, sides: tuple[int, int]) -> Callable[[Any], Tensor]:
        from torchvision import transforms

        target = self.at(sides)
        interpolation = _interpolation(target.resample)
        steps: list[Callable[[Any], Any]] = [
            transforms.Resize(target.resize, interpolation=interpolation),
            *([] if target.crop is None else [transforms.CenterCrop(target.crop)]),
            transforms.ToTensor(),
            transforms.Normalize(target.mean, target.std),
        ]
        transform: Callable[[Any], Tensor] = transforms.Compose(steps)
        return transform


def _pair(size: Any) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def _interpolation(resample: int) -> Any:
    """Return torchvision's mode for PIL's number."""
    from torchvision.transforms import InterpolationMode

    modes = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")
    return InterpolationMode[modes[resample]]


def saved_processor(name: str) -> Any:
    """Load the image processor beside the model's weights, if there is one. Its code is not run."""
    from transformers import AutoImageProcessor

    if not name:
        return None
    if Path(name).is_dir() and not (Path(name) / "preprocessor_config.json").is_file():
        return None
    try:
        return AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError):
        return None
