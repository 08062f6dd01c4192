"""Where labelled images lie: class folders, a flat folder and a mapping, tar shards, datasets."""

from __future__ import annotations

import csv
import importlib
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from ..files import bytes_of, parsed, text_of
from .sets import SETS, images_of, set_named

ENDINGS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MOST_SHARDS = 100_000


class Item(NamedTuple):
    path: str
    read: Callable[[], bytes]
    label: int


def find(
    name: str, mapping: Path | None, split: str, labelled: bool = True
) -> tuple[list[Item], int | None]:
    """The items, and the number of classes where the data tells it; without labels all are 0."""
    if (known := set_named(name)) is not None:
        if mapping is not None:
            raise ValueError(f"--mapping goes with a folder of images, and {name} is none")
        found = images_of(*known, train=split == "train")
        return [_item(path, label) for path, label in found], SETS[known[0]].classes
    hub = name.startswith("hf:")
    shards = [] if hub else tar_shards(name)
    if mapping is not None and (hub or shards):
        raise ValueError(f"--mapping goes with a folder of images, and {name} is none")
    if hub:
        return _hugging_face(name, split)
    if shards:
        return [item for shard in shards for item in _samples(shard, labelled)], None
    if not labelled and mapping is None:
        return [_item(path, 0) for path in visible_files(Path(name)) if is_image(path)], None
    return _mapped(Path(name), mapping) if mapping else _image_folder(Path(name))


def class_folders(name: str) -> list[str] | None:
    """The names of the classes, where each is a folder."""
    if name.startswith("hf:") or not Path(name).is_dir() or tar_shards(name):
        return None
    return [each.name for each in _classes(Path(name))]


def _classes(folder: Path) -> list[Path]:
    held = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    return [each for each in held if each.is_dir()]


def _item(path: Path, label: int) -> Item:
    return Item(str(path), partial(bytes_of, path), label)


def is_image(path: PurePath) -> bool:
    return path.suffix.lower() in ENDINGS


def visible_files(folder: Path) -> list[Path]:
    """All files at any depth, in order, less what file managers leave behind."""
    walk = sorted(_walk(folder))
    files = [Path(root, name) for root, names in walk for name in sorted(names)]
    hidden = re.compile(r"(^|/)(\.[^/]*|Thumbs\.db$|desktop\.ini$)")
    return [path for path in files if not hidden.search(path.relative_to(folder).as_posix())]


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder once, though links may lead to it again and again, from within itself too."""
    seen = set[tuple[int, int]]()
    for root, folders, names in os.walk(folder, followlinks=True):
        held = Path(root).stat()
        if (held.st_dev, held.st_ino) in seen:
            folders.clear()
            continue
        seen.add((held.st_dev, held.st_ino))
        folders.sort()
        yield root, names


def _image_folder(folder: Path) -> tuple[list[Item], int]:
    held = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    for each in held:
        if is_image(each) and each.is_file():
            problem = f"{folder} holds images outside class folders ({each.name})"
            raise ValueError(f"{problem}: give --mapping FILE to say what they show")
    folders = _classes(folder)
    items: list[Item] = []
    for label, each in enumerate(folders):
        files = visible_files(each)
        if not files:
            raise ValueError(f"the class folder {each} is empty")
        for path in files:
            if not is_image(path):
                raise ValueError(f"{path} has none of the endings {' '.join(ENDINGS)}")
            items.append(_item(path, label))
    return items, len(folders)


def _mapped(folder: Path, mapping: Path) -> tuple[list[Item], int | None]:
    named = _read_mapping(mapping)
    files = {path.relative_to(folder).as_posix(): path for path in visible_files(folder)}
    held = {name: path for name, path in files.items() if is_image(path)}
    for name in named:
        if name not in held:
            raise FileNotFoundError(f"{mapping} names {name}, which is not in {folder}")
    for name in held:
        if name not in named:
            raise ValueError(f"{mapping} has no label for {name}, which is in {folder}")
    classes = sorted(set(named.values()))
    numbers = [bool(re.fullmatch(r"-?\d+", each)) for each in classes]
    if any(numbers) and not all(numbers):
        raise ValueError(f"the labels in {mapping} are partly class indices and partly names")
    indices = {each: int(each) if all(numbers) else at for at, each in enumerate(classes)}
    items = [_item(path, indices[named[name]]) for name, path in held.items()]
    return items, None if all(numbers) else len(classes)


def _read_mapping(mapping: Path) -> dict[str, str]:
    """Label by file name, from two columns between commas, tabs or blanks."""
    try:
        lines = text_of(mapping, "mapping").removeprefix("\ufeff").splitlines()
        mark = next((mark for mark in "\t," if lines and mark in lines[0]), None)
        rows = csv.reader(lines, delimiter=mark) if mark else [e.rsplit(None, 1) for e in lines]
        table = [[cell.strip() for cell in row] for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"cannot read the mapping {mapping}: {error}") from None
    named: dict[str, str] = {}
    for number, row in enumerate(table, start=1):
        where = f"line {number} of {mapping}"
        if not any(row):
            continue
        if len(row) != 2 or not all(row):
            raise ValueError(f"{where} is not a file name and a label")
        path = PurePath(row[0])
        if number == 1 and not path.suffix:
            continue  # a header
        if not is_image(path):
            raise ValueError(f"{where}: {path} has none of the endings {' '.join(ENDINGS)}")
        if path.as_posix() in named:
            raise ValueError(f"{where} names {path} again")
        named[path.as_posix()] = row[1]
    return named


def tar_shards(text: str) -> list[Path]:
    """The shards that `text` names; none if it is a folder of something else."""
    place = Path(text)
    if place.is_dir():
        held = sorted(each for each in place.iterdir() if not each.name.startswith("."))
        return held if all(each.suffix == ".tar" and each.is_file() for each in held) else []
    if not place.exists() and not re.search(r"[*?\[{]", text):
        raise FileNotFoundError(f"no data at {text}: there is no such file or folder")
    shards = [place] if place.exists() else spelled_out(text)
    if not shards:
        raise FileNotFoundError(f"no files match {text}")
    for each in shards:
        if not each.is_file():
            raise FileNotFoundError(f"no shard {each}, which {text} names")
        if each.suffix != ".tar":
            raise NotADirectoryError(f"{each} is a file and no .tar shard: give a folder")
    return list(dict.fromkeys(shards))


def spelled_out(text: str) -> list[Path]:
    """Every file that a glob, or braces, stand for."""
    spellings = list(islice(_braces(text), MOST_SHARDS + 1))
    if len(spellings) > MOST_SHARDS:
        raise ValueError(f"{text} names more than {MOST_SHARDS:,} files")
    return [path for each in spellings for path in _glob(each)]


def _braces(text: str) -> Iterator[str]:
    """`{000..123}` and `{a,b}` written out, as shells do it."""
    braces = re.search(r"\{([^{}]*)\}", text)
    if braces is None:
        yield text
        return
    options: Iterable[str] = braces[1].split(",")
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", braces[1]):
        width, numbers = len(span[1]), range(int(span[1]), int(span[2]) + 1)
        options = (f"{number:0{width}d}" for number in numbers)
    before, after = text[: braces.start()], text[braces.end() :]
    for option in options:
        yield from _braces(before + option + after)


def _glob(text: str) -> list[Path]:
    path = Path(text)
    if not re.search(r"[*?\[]", text):
        return [path]
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _samples(shard: Path, labelled: bool) -> Iterator[Item]:
    for key, parts in index_tar(shard).items():
        image, where = parts.get("image"), f"{key} in {shard}"
        if image is not None:
            read = partial(bytes_of, shard, image.offset_data, image.size)
            label = _label(shard, parts, where) if labelled else 0
            yield Item(f"{shard}:{image.name}", read, label)
        elif "cls" in parts:
            raise ValueError(f"{where} has a label and no image")


def index_tar(shard: Path) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Parts of each sample by the key that WebDataset gives it: all up to the name's first dot."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for info in tar:
                name = re.fullmatch(r"((?:.*/)?[^./]+)(\.[^/]*)", info.name)
                if not info.isreg() or name is None:
                    continue
                key, ending = name[1], name[2].lower()
                part = "image" if ending in ENDINGS else ending[1:]
                if part in samples.setdefault(key, {}):
                    raise ValueError(f"it has two {part} files for {key}")
                samples[key][part] = info
        # tarfile takes a broken header for the end; the true end is a block of zeros.
        if bytes_of(shard, tar.offset, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"it breaks off at byte {tar.offset}")
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise ValueError(f"cannot index {shard} as an uncompressed tar file: {error}") from None
    return samples


def _label(shard: Path, parts: dict[str, tarfile.TarInfo], where: str) -> int:
    info = parts.get("cls") or parts.get("json")
    if info is None:
        raise ValueError(f"{where} has no label: neither .cls nor .json")
    data = bytes_of(shard, info.offset_data, info.size)
    try:
        label = int(data.decode("ascii")) if "cls" in parts else parsed(data)["label"]
    except (ValueError, TypeError, KeyError):
        label = None
    if type(label) is not int:
        raise ValueError(f"the label of {where} is not a class index: {data[:40]!r}")
    return label


def _hugging_face(name: str, split: str) -> tuple[list[Item], int | None]:
    rows = _load(name.removeprefix("hf:"), split)
    kinds, features = importlib.import_module("datasets"), rows.features
    images = [key for key, kind in features.items() if isinstance(kind, kinds.Image)]
    named = [key for key, kind in features.items() if isinstance(kind, kinds.ClassLabel)]
    usual = ["label", "labels", "fine_label"]
    numbers = [e for e in usual if "int" in str(getattr(features.get(e), "dtype", ""))]
    image = _column(images, ["image", "img"], f"{name} has no one column of images")
    label = _column(named or numbers, usual, f"{name} has no one column of labels")
    labels = [-1 if each is None else int(each) for each in rows[label]]
    # Undecoded, so that an image is decoded here as from everywhere else.
    rows = rows.select_columns([image]).cast_column(image, kinds.Image(decode=False))
    reads = [partial(_cell, rows, image, at) for at in range(len(labels))]
    items = [Item(f"{name} row {at}", reads[at], each) for at, each in enumerate(labels)]
    return items, len(features[label].names) if named else None


def _cell(rows: Any, column: str, at: int) -> bytes:
    cell = rows[at][column] or {"bytes": b""}
    data: bytes | None = cell["bytes"]
    return bytes_of(Path(cell["path"])) if data is None else data


def _column(candidates: list[str], usual: list[str], problem: str) -> str:
    """The one candidate, or among several the first of the usual names."""
    if len(candidates) == 1:
        return candidates[0]
    for key in usual:
        if key in candidates:
            return key
    raise ValueError(f"{problem}: found {', '.join(candidates) or 'none'}")


def _load(name: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise ValueError("hf: needs one more package: pip install datasets") from None
    saved = [Path(name, each).is_file() for each in ("dataset_dict.json", "state.json")]
    try:
        if not any(saved):
            return datasets.load_dataset(name, split=split)
        rows = datasets.load_from_disk(name)
    except Exception as error:  # hubs, builders and file systems fail in ways of their own
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot load hf:{name}, split {split}: {first}") from None
    if isinstance(rows, dict) and split not in rows:
        raise ValueError(f"hf:{name} has no split {split}, only {', '.join(rows)}")
    return rows[split] if isinstance(rows, dict) else rows
