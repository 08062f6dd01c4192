"""The paper's seven data sets for transfer, in the layout of torchvision or of their authors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..safety.files import text_of


class Set(NamedTuple):
    """A data set with its published numbers. Everything outside the test split is train."""

    classes: int
    train: int
    test: int
    torchvision: str = ""  # its class there; "": read from its authors' lists
    parts: tuple[str, ...] = ("trainval",)  # torchvision's splits that make up train


#: by prefix: `pets:FOLDER`
SETS = {
    "aircraft": Set(100, 6667, 3333, "FGVCAircraft"),
    "cars": Set(196, 8144, 8041, "StanfordCars", ("train",)),
    "cub200": Set(200, 5994, 5794),
    "dtd": Set(47, 3760, 1880, "DTD", ("train", "val")),
    "flowers": Set(102, 2040, 6149, "Flowers102", ("train", "val")),
    "indoor67": Set(67, 5360, 1340),
    "pets": Set(37, 3680, 3669, "OxfordIIITPet"),
}

Labeled = tuple[Path, int]


def set_named(spec: str) -> tuple[str, Path] | None:
    """Split `pets:FOLDER` into data set and folder; return None for anything else."""
    name, colon, folder = spec.partition(":")
    return (name, Path(folder)) if colon and name in SETS else None


def images_of(name: str, folder: Path, train: bool) -> list[Labeled]:
    """List the images of a split with their classes.

    An incomplete split is refused: its accuracy would be taken for that of the whole.
    """
    known = SETS[name]
    if known.torchvision:
        images = _from_torchvision(name, folder, train)
    else:
        images = list({"cub200": _cub200, "indoor67": _indoor67}[name](folder, train))
    count, split = (known.train, "train") if train else (known.test, "test")
    classes = len({label for _, label in images})
    if (len(images), classes) != (count, known.classes):
        raise ValueError(
            f"{name}:{folder} is incomplete: expected {count} images of {known.classes} classes in "
            f"its {split} split, got {len(images)} of {classes}"
        )
    return images


def _from_torchvision(name: str, folder: Path, train: bool) -> list[Labeled]:
    from torchvision import datasets

    known = SETS[name]
    kind = getattr(datasets, known.torchvision)
    images: list[Labeled] = []
    for part in known.parts if train else ("test",):
        try:
            dataset = kind(folder, split=part, download=False)
        except ImportError:
            raise ValueError(f"{name}: needs one more package: pip install scipy") from None
        except RuntimeError as error:
            raise ValueError(
                f"no {name} in {folder} ({error}): download it by "
                f"torchvision.datasets.{known.torchvision}({str(folder)!r}, download=True)"
            ) from None
        images += _paths_in(dataset)
    return images


def _paths_in(dataset: Any) -> Iterator[Labeled]:
    """Return paths and labels of a torchvision data set, whose items are decoded images."""
    if hasattr(dataset, "loader"):
        dataset.loader = Path
        for index in range(len(dataset)):
            yield dataset[index]
    else:  # OxfordIIITPet has no loader to replace
        yield from zip(map(Path, dataset._images), dataset._labels, strict=True)


def _cub200(folder: Path, train: bool) -> Iterator[Labeled]:
    """Read CUB-200-2011's lists: every image has a number, by which all lists refer to it."""
    inner = folder / "CUB_200_2011"
    root = inner if inner.is_dir() else folder
    names = dict(_pairs(root / "images.txt"))
    classes = dict(_pairs(root / "image_class_labels.txt"))
    split = dict(_pairs(root / "train_test_split.txt"))
    for number, name in names.items():
        if (split[number] == "1") == train:
            yield root / "images" / name, int(classes[number]) - 1


def _indoor67(folder: Path, train: bool) -> Iterator[Labeled]:
    """Read MIT Indoor 67's lists, which name the images of a split with their class folder."""
    lists = [_lines(folder / f"{split}Images.txt") for split in ("Train", "Test")]
    classes = sorted({line.partition("/")[0] for lines in lists for line in lines})
    for line in lists[0 if train else 1]:
        yield folder / "Images" / line, classes.index(line.partition("/")[0])


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        number, _, rest = line.partition(" ")
        yield number, rest.strip()


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in text_of(path, "list of images").splitlines() if line.strip()]
