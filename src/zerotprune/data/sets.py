"""The paper's seven sets for transfer, where torchvision or their authors have laid them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..files import text_of


class Set(NamedTuple):
    """A set by its published numbers. Of each, train is all that is not test."""

    classes: int
    train: int
    test: int
    torchvision: str = ""  # its name there; "" where it is read from its authors' lists
    parts: tuple[str, ...] = ("trainval",)  # what torchvision calls those of train


#: by the names they have before a folder: `pets:FOLDER`
SETS = {
    "aircraft": Set(100, 6667, 3333, "FGVCAircraft"),
    "cars": Set(196, 8144, 8041, "StanfordCars", ("train",)),
    "cub200": Set(200, 5994, 5794),
    "dtd": Set(47, 3760, 1880, "DTD", ("train", "val")),
    "flowers": Set(102, 2040, 6149, "Flowers102", ("train", "val")),
    "indoor67": Set(67, 5360, 1340),
    "pets": Set(37, 3680, 3669, "OxfordIIITPet"),
}

Labelled = tuple[Path, int]


def set_named(spec: str) -> tuple[str, Path] | None:
    """The set and the folder that `pets:FOLDER` means; None where it means something else."""
    name, colon, folder = spec.partition(":")
    return (name, Path(folder)) if colon and name in SETS else None


def images_of(name: str, folder: Path, train: bool) -> list[Labelled]:
    """Every image of a split and its class. One that is not whole is refused: an accuracy on a part
    would be taken for that of the whole."""
    known = SETS[name]
    if known.torchvision:
        found = _from_torchvision(name, folder, train)
    else:
        found = list({"cub200": _cub200, "indoor67": _indoor67}[name](folder, train))
    wanted, split = (known.train, "train") if train else (known.test, "test")
    classes = len({label for _, label in found})
    if (len(found), classes) != (wanted, known.classes):
        raise ValueError(
            f"{name}:{folder} has {len(found)} images of {classes} classes in its {split} split, "
            f"and the set has {wanted} of {known.classes}"
        )
    return found


def _from_torchvision(name: str, folder: Path, train: bool) -> list[Labelled]:
    from torchvision import datasets

    known = SETS[name]
    kind = getattr(datasets, known.torchvision)
    found: list[Labelled] = []
    for part in known.parts if train else ("test",):
        try:
            held = kind(folder, split=part, download=False)
        except ImportError:
            raise ValueError(f"{name}: needs one more package: pip install scipy") from None
        except RuntimeError as error:
            raise ValueError(
                f"no {name} in {folder} ({error}): nothing is fetched here; "
                f"torchvision.datasets.{known.torchvision}({str(folder)!r}, download=True) does"
            ) from None
        found += _paths_in(held)
    return found


def _paths_in(held: Any) -> Iterator[Labelled]:
    """Paths and labels: by its items torchvision gives images, which we decode ourselves."""
    if hasattr(held, "loader"):
        held.loader = Path
        for at in range(len(held)):
            yield held[at]
    else:  # the pets have no loader to be told
        yield from zip(map(Path, held._images), held._labels, strict=True)


def _cub200(folder: Path, train: bool) -> Iterator[Labelled]:
    """By CUB-200-2011's lists: each image has a number, and a line by it in all of them."""
    inner = folder / "CUB_200_2011"
    home = inner if inner.is_dir() else folder
    names, classes, split = (dict(_pairs(home / f"{each}.txt"))
                             for each in ("images", "image_class_labels", "train_test_split")
                             )  # fmt: skip
    for number, name in names.items():
        if (split[number] == "1") == train:
            yield home / "images" / name, int(classes[number]) - 1


def _indoor67(folder: Path, train: bool) -> Iterator[Labelled]:
    """By MIT Indoor 67's lists, which name the images of each split by their class folder."""
    lists = [_lines(folder / f"{each}Images.txt") for each in ("Train", "Test")]
    classes = sorted({line.partition("/")[0] for lines in lists for line in lines})
    for line in lists[0 if train else 1]:
        yield folder / "Images" / line, classes.index(line.partition("/")[0])


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        number, _, rest = line.partition(" ")
        yield number, rest.strip()


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in text_of(path, "list of images").splitlines() if line.strip()]
