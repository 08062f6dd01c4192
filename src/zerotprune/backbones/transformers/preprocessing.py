"""transformers' image processors as a transform of PIL images: resize, crop, mean and deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

_EVEN = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Preprocessing:
    """What an image processor says of its images."""

    resize: int | tuple[int, int]  # the shorter side, or height and width
    crop: tuple[int, int] | None  # from the middle
    mean: tuple[float, ...] = _EVEN
    std: tuple[float, ...] = _EVEN
    resample: int = 3  # PIL's number; bicubic

    @classmethod
    def of(cls, model: Any, sides: tuple[int, ...]) -> Preprocessing:
        """That which was saved with the model; without one, values in [-1, 1]."""
        height, width = sides
        processor = _saved(model.name_or_path)
        if processor is None:
            return cls((height, width), None)
        size, crop = processor.size or {}, None
        if getattr(processor, "do_center_crop", False):
            crop = _pair(processor.crop_size)
        shorter = size.get("shortest_edge")
        resize = int(shorter) if shorter else _pair(size or {"height": height, "width": width})
        normalizes = getattr(processor, "do_normalize", True)
        mean, std = (
            tuple(getattr(processor, name)) if normalizes else empty
            for name, empty in (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3))
        )
        return cls(resize, crop, mean, std, int(getattr(processor, "resample", 3) or 3))

    def at(self, sides: tuple[int, int]) -> Preprocessing:
        """For images of another size, with as much of them cut off."""
        out = self.crop or self.resize
        if isinstance(out, int) or out == sides:
            return self if out == sides else replace(self, crop=sides)
        if isinstance(self.resize, int):
            scaled = round(self.resize * min(sides) / min(out))
            return replace(self, resize=scaled, crop=sides)
        down, across = (
            round(own * new / old) for own, new, old in zip(self.resize, sides, out, strict=True)
        )
        return replace(self, resize=(down, across), crop=self.crop and sides)

    def transform(self, sides: tuple[int, int]) -> Callable[[Any], Tensor]:
        from torchvision import transforms

        wanted = self.at(sides)
        how = _interpolation(wanted.resample)
        steps: list[Callable[[Any], Any]] = [
            transforms.Resize(wanted.resize, interpolation=how),
            *([] if wanted.crop is None else [transforms.CenterCrop(wanted.crop)]),
            transforms.ToTensor(),
            transforms.Normalize(wanted.mean, wanted.std),
        ]
        made: Callable[[Any], Tensor] = transforms.Compose(steps)
        return made


def _pair(size: Any) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def _interpolation(resample: int) -> Any:
    """torchvision's word for PIL's number."""
    from torchvision.transforms import InterpolationMode

    modes = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")
    return InterpolationMode[modes[resample]]


def _saved(where: str) -> Any:
    """The image processor beside the model's weights, if there is one."""
    from transformers import AutoImageProcessor

    if not where:
        return None
    if Path(where).is_dir() and not (Path(where) / "preprocessor_config.json").is_file():
        return None
    try:
        return AutoImageProcessor.from_pretrained(where)
    except (OSError, ValueError):
        return None
