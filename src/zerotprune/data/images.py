"""Images: decode untrusted files, and read labeled images in batches through a model's transform.

Only known formats are decoded, and sizes are checked before any pixel is.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..safety.interrupts import kept_from_children, silence_worker
from ..shapes import Batch
from .sources import Item, class_folders, find

Transform = Callable[[Image.Image], Tensor]

#: PIL knows many more, and passes some of them to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 100_000_000
MAX_ASPECT = 20  # enlarging the shorter side of a thin strip would make it huge


class BadImage(ValueError):  # noqa: N818  it says what the file is, not what went wrong here
    """A file that is not a complete image; the message names it."""


def decode(file: Path | BinaryIO, name: str | None = None) -> Image.Image:
    """Decode to RGB as torchvision's loader does: EXIF rotation is ignored, 16-bit gray is scaled.

    Raises:
        BadImage: if the file is not a complete image, or too large.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's remarks on palettes, EXIF and size
        try:
            with Image.open(file, formats=FORMATS) as image:
                return to_rgb(image, str(name or file))
        except BadImage:
            raise
        except UnidentifiedImageError:
            formats = ", ".join(FORMATS)
            raise BadImage(f"{name or file} is not an image: expected {formats}") from None
        except Image.DecompressionBombError:
            limit = f"at most {MAX_PIXELS // 10**6} megapixels can be opened"
            raise BadImage(f"{name or file} cannot be decoded: too many pixels, {limit}") from None
        except Exception as error:
            raise _undecodable(str(name or file), error) from None


def upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF orientation says, if that can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ImageOps.exif_transpose(image)
        except Exception:  # PIL's reader may fail in any way on broken EXIF, which no pixel needs
            return image


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert an image that was opened elsewhere, as `decode` does.

    Raises:
        BadImage: if it is not complete, or too large.
    """
    try:
        check_sides(*image.size)
        return _rgb(image)
    except Exception as error:
        raise _undecodable(name, error) from None


def _undecodable(name: str, error: Exception) -> BadImage:
    """Say why an image cannot be decoded. PIL's plugins may fail in any way on a broken file."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return BadImage(f"{name} cannot be decoded: {reason}")


def check_sides(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse images by the size in their header: a small file may decode to gigabytes."""
    if not width or not height:
        raise ValueError(f"it has {width} × {height} pixels")
    if width * height > max_pixels:
        raise ValueError(
            f"it has {width} × {height} = {width * height / 1e6:.1f} megapixels: at most "
            f"{max_pixels // 10**6} megapixels can be opened"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(
            f"it has {width} × {height} pixels: its longer side may be at most {MAX_ASPECT} "
            "times the shorter one"
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image.convert("RGB")
    # In some of these modes and versions, PIL's conversion clips at 255.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its gray values have more than 16 bits")
    return Image.fromarray((values // 256).astype(np.uint8)).convert("RGB")


@dataclass
class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Labeled images in a fixed order.

    Args:
        name: Where they are from.
        items: The images.
        classes: How many classes there are.
        exact: False if labels are bare indices: there may be more classes then.
        transform: From a decoded image to the model's input.
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

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, read, label = self.items[index]
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
    labeled: bool = True,
) -> ImageDataset:
    """Open a data set.

    Args:
        spec: A folder, `.tar` shards (a file, a glob, `{000..123}`, a folder of them), or
            `hf:NAME`.
        mapping: For a flat folder, a file with the label of every image.
        split: Of data that has splits, see `has_splits`; all of other data is used.
        limit: Use at most this many images, spread evenly over the data.
        transform: Default: images keep their sizes, with values in [0, 1].
        labeled: Without labels, a folder may have images at any depth.
    """
    name = str(spec)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    items, classes = find(name, mapping, split, labeled)
    if not items:
        raise ValueError(f"no images in {name}")
    for item in items:
        if item.label < 0:
            raise ValueError(f"the label of {item.path} is not a class index: {item.label}")
    num_classes = max(item.label for item in items) + 1 if classes is None else classes
    if limit is not None and limit < len(items):
        items = [items[number * len(items) // limit] for number in range(limit)]
    return ImageDataset(name, items, num_classes, classes is not None, transform or _to_tensor)


def _to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def check_classes(dataset: ImageDataset, outputs: int) -> None:
    """Refuse data whose classes cannot be those of the model's head."""
    count = dataset.classes
    if count > outputs or (dataset.exact and count != outputs):
        classes = f"{'' if dataset.exact else 'at least '}{count} class{'es' * (count != 1)}"
        raise ValueError(f"the data has {classes}, the model's head has {outputs}")


def check_pair(train: ImageDataset, val: ImageDataset) -> None:
    """Refuse to learn from data with a single class, or with other classes than `val` has."""
    if train.classes < 2:
        raise ValueError(f"{train.name} has a single class: expected two or more")
    folders, others = class_folders(train.name), class_folders(val.name)
    # With a mapping, folders are not the classes.
    named = (len(folders or ()), len(others or ())) == (train.classes, val.classes)
    if folders and others and named and folders != others:
        odd = sorted(set(folders) ^ set(others))[0]
        has, lacks = (train.name, val.name) if odd in folders else (val.name, train.name)
        raise ValueError(
            f"the class {odd} is in {has} but not in {lacks}: both need the same classes"
        )
    if train.exact and val.exact and train.classes != val.classes:
        raise ValueError(
            f"{train.name} has {train.classes} classes, {val.name} has {val.classes}: both need "
            "the same classes"
        )
    if val.classes > train.classes:
        raise ValueError(
            f"{val.name} has at least {val.classes} classes, {train.name} has {train.classes}"
        )


def read_sample(dataset: ImageDataset, count: int = 32) -> Tensor:
    """Read `count` images, spread evenly over the data, without those that cannot be read."""
    items = [dataset.items[number * len(dataset) // count] for number in range(count)]
    sample = replace(dataset, items=items)
    batch = next(batches(sample, count, report=lambda message: None), None)
    if batch is None:
        raise ValueError(f"none of the images in {dataset.name} can be read")
    return batch[0]


def batches(
    dataset: ImageDataset,
    batch_size: int,
    *,
    report: Callable[[str], None],
    workers: int = 0,
    strict: bool = False,
    rank: int = 0,
    world: int = 1,
    order: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Yield images, labels and indices in order. Nothing is padded.

    Args:
        dataset: The images.
        batch_size: How many at a time. An image that cannot be read is left out of its batch.
        report: Called with a message for every image that cannot be read.
        workers: Processes that decode images.
        strict: Raise `BadImage` instead of leaving an image out.
        rank: This process gets the images `rank`, `rank + world`, …
        world: How many processes share the images.
        order: The indices of all images or of some. Default: all, in order.
    """
    if batch_size < 1 or workers < 0:
        raise ValueError(
            f"expected a batch size of at least 1 and workers of at least 0, got {batch_size} and "
            f"{workers}"
        )
    if not 0 <= rank < world:
        raise ValueError(f"rank must be from 0 to {world - 1}, got {rank}")
    indices = range(len(dataset)) if order is None else order
    loader: DataLoader[Any] = DataLoader(
        indices[rank::world],  # type: ignore[arg-type]  # a sequence is enough
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=partial(_collect, dataset),
        worker_init_fn=silence_worker,
        generator=torch.Generator(),  # leave the global random state alone
    )

    def readable() -> Iterator[Batch]:
        for batch, failures in read_loader(loader):
            for message in failures:
                if strict:
                    raise BadImage(message)
                report(message)
            if batch is not None:
                yield batch

    return readable()  # an inner generator: wrong arguments raise here, not at the first batch


def read_loader(loader: DataLoader[Any]) -> Iterator[Any]:
    """Iterate over a loader whose workers ignore Ctrl-C: this process handles it."""
    with kept_from_children() if loader.num_workers else nullcontext():
        iterator = iter(loader)
    yield from iterator


def _collect(dataset: ImageDataset, indices: list[int]) -> tuple[Batch | None, list[str]]:
    """Decode a batch. Failures are returned: raised in a worker, they print a traceback."""
    good, failures = list[tuple[Tensor, int, int]](), list[str]()
    for index in indices:
        try:
            good.append((*dataset[index], index))
        except BadImage as error:
            failures.append(str(error))
    if not good:
        return None, failures
    images, labels, kept = zip(*good, strict=True)
    return (torch.stack(images), torch.tensor(labels), torch.tensor(kept)), failures
