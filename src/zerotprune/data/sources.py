"""Find labeled images: class folders, a flat folder with a mapping, tar shards, datasets."""

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

from ..safety.files import bytes_of, parse_json, text_of
from .sets import SETS, images_of, set_named

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MAX_SHARDS = 100_000
_SINGLE, _DICT = "state.json", "dataset_dict.json"  # of what `datasets` saved: one split, or more


class Item(NamedTuple):
    """One image: where it is, how to read it, and its class."""

    path: str
    read: Callable[[], bytes]
    label: int


def find(
    name: str, mapping: Path | None, split: str, labeled: bool = True
) -> tuple[list[Item], int | None]:
    """Find the images of a data set by its name.

    Args:
        name: A folder, tar shards, `hf:DATASET`, or `pets:FOLDER` and the like.
        mapping: For a flat folder, a file with the label of every image.
        split: Of data that has splits. The paper's sets have one for validation and test.
        labeled: Without labels, all labels are 0.

    Returns:
        The items, and the number of classes if the data says so.
    """
    if (known := set_named(name)) is not None:
        if mapping is not None:
            raise ValueError(f"--mapping needs a folder of images, got {name}")
        if split not in ("train", "validation", "test"):
            raise ValueError(f"{name} has the splits train and test, got {split}")
        labeled_paths = images_of(*known, train=split == "train")
        return [_item(path, label) for path, label in labeled_paths], SETS[known[0]].classes
    hub = name.startswith("hf:")
    shards = [] if hub else tar_shards(name)
    if mapping is not None and (hub or shards):
        raise ValueError(f"--mapping needs a folder of images, got {name}")
    if hub:
        return _hugging_face(name, split, labeled)
    if shards:
        return [item for shard in shards for item in _samples(shard, labeled)], None
    if not labeled and mapping is None:
        return [_item(path, 0) for path in visible_files(Path(name)) if is_image(path)], None
    return _mapped(Path(name), mapping) if mapping else _image_folder(Path(name))


def has_splits(name: str) -> bool:
    """Return whether a data set has splits to choose from; folders and shards have none."""
    if name.startswith("hf:"):
        return not Path(name.removeprefix("hf:"), _SINGLE).is_file()
    return set_named(name) is not None


def class_folders(name: str) -> list[str] | None:
    """Return the class names if every class is a folder, else None."""
    if name.startswith("hf:") or not Path(name).is_dir() or tar_shards(name):
        return None
    return [folder.name for folder in _entries(Path(name)) if folder.is_dir()]


def _entries(folder: Path) -> list[Path]:
    """List a folder in order, without hidden files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _item(path: Path, label: int) -> Item:
    return Item(str(path), partial(bytes_of, path), label)


def is_image(path: PurePath) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def visible_files(folder: Path) -> list[Path]:
    """List all files at any depth, in order, without what file managers leave behind."""
    walk = sorted(_walk(folder))
    files = [Path(root, name) for root, names in walk for name in sorted(names)]
    hidden = re.compile(r"(^|/)(\.[^/]*|Thumbs\.db$|desktop\.ini$)")
    return [path for path in files if not hidden.search(path.relative_to(folder).as_posix())]


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Visit every folder once, although links may lead back to it."""
    seen = set[tuple[int, int]]()
    for root, folders, names in os.walk(folder, followlinks=True):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        yield root, names


def _image_folder(folder: Path) -> tuple[list[Item], int]:
    for path in _entries(folder):
        if is_image(path) and path.is_file():
            raise ValueError(
                f"{folder} has images outside class folders ({path.name}): give their labels by "
                "--mapping FILE"
            )
    classes = [path for path in _entries(folder) if path.is_dir()]
    items: list[Item] = []
    for label, class_folder in enumerate(classes):
        files = visible_files(class_folder)
        if not files:
            raise ValueError(f"the class folder {class_folder} is empty")
        for path in files:
            if not is_image(path):
                raise ValueError(f"{path} is not an image: expected {' '.join(IMAGE_SUFFIXES)}")
            items.append(_item(path, label))
    return items, len(classes)


def _mapped(folder: Path, mapping: Path) -> tuple[list[Item], int | None]:
    labels = _read_mapping(mapping)
    files = {path.relative_to(folder).as_posix(): path for path in visible_files(folder)}
    images = {name: path for name, path in files.items() if is_image(path)}
    for name in labels:
        if name not in images:
            raise FileNotFoundError(f"{mapping} names {name}, which is not in {folder}")
    for name in images:
        if name not in labels:
            raise ValueError(f"{mapping} has no label for {name}, which is in {folder}")
    classes = sorted(set(labels.values()))
    numbers = [bool(re.fullmatch(r"-?\d+", label)) for label in classes]
    if any(numbers) and not all(numbers):
        raise ValueError(f"the labels in {mapping} are partly class indices and partly names")
    indices = {label: int(label) if all(numbers) else index for index, label in enumerate(classes)}
    items = [_item(path, indices[labels[name]]) for name, path in images.items()]
    return items, None if all(numbers) else len(classes)


def _read_mapping(mapping: Path) -> dict[str, str]:
    """Read labels by file name, from two columns separated by commas, tabs or blanks."""
    try:
        lines = text_of(mapping, "mapping").splitlines()
        delimiter = next((mark for mark in "\t," if lines and mark in lines[0]), None)
        rows: Iterable[list[str]] = (line.rsplit(None, 1) for line in lines)
        if delimiter is not None:
            rows = csv.reader(lines, delimiter=delimiter)
        table = [[cell.strip() for cell in row] for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"cannot read the mapping {mapping}: {error}") from None
    labels: dict[str, str] = {}
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
            raise ValueError(
                f"{where}: {path} is not an image: expected {' '.join(IMAGE_SUFFIXES)}"
            )
        if path.as_posix() in labels:
            raise ValueError(f"{where} names {path} again")
        labels[path.as_posix()] = row[1]
    return labels


def tar_shards(text: str) -> list[Path]:
    """Return the shards that `text` names; none if it is a folder of other files. A folder of
    shards may have other files beside them, as img2dataset writes."""
    path = Path(text)
    if path.is_dir():
        entries = _entries(path)
        if any(is_image(entry) or not entry.is_file() for entry in entries):
            return []
        return [entry for entry in entries if entry.suffix == ".tar"]
    if not path.exists() and not re.search(r"[*?\[{]", text):
        raise FileNotFoundError(f"no data at {text}: there is no such file or folder")
    shards = [path] if path.exists() else expand_pattern(text)
    if not shards:
        raise FileNotFoundError(f"no files match {text}")
    for shard in shards:
        if not shard.is_file():
            raise FileNotFoundError(f"no shard {shard}, which {text} names")
        if shard.suffix != ".tar":
            raise NotADirectoryError(f"expected a folder or a .tar shard, got the file {shard}")
    return list(dict.fromkeys(shards))


def expand_pattern(text: str) -> list[Path]:
    """Return every file that a glob or braces stand for."""
    patterns = list(islice(_expand_braces(text), MAX_SHARDS + 1))
    if len(patterns) > MAX_SHARDS:
        raise ValueError(f"{text} names more than {MAX_SHARDS:,} files")
    return [path for pattern in patterns for path in _glob(pattern)]


def _expand_braces(text: str) -> Iterator[str]:
    """Expand `{000..123}` and `{a,b}` as a shell does."""
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
        yield from _expand_braces(before + option + after)


def _glob(text: str) -> list[Path]:
    path = Path(text)
    if not re.search(r"[*?\[]", text):
        return [path]
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _samples(shard: Path, labeled: bool) -> Iterator[Item]:
    for key, parts in index_tar(shard).items():
        image, where = parts.get("image"), f"{key} in {shard}"
        if image is not None:
            read = partial(bytes_of, shard, image.offset_data, image.size)
            label = _label(shard, parts, where) if labeled else 0
            yield Item(f"{shard}:{image.name}", read, label)
        elif "cls" in parts:
            raise ValueError(f"{where} has a label and no image")


def index_tar(shard: Path) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Group the files of a shard by sample. As in WebDataset, a key ends at the first dot."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for info in tar:
                name = re.fullmatch(r"((?:.*/)?[^./]+)(\.[^/]*)", info.name)
                if not info.isreg() or name is None:
                    continue
                key, ending = name[1], name[2].lower()
                part = "image" if ending in IMAGE_SUFFIXES else ending[1:]
                if part in samples.setdefault(key, {}):
                    raise ValueError(f"it has two {part} files for {key}")
                samples[key][part] = info
        # tarfile takes a broken header for the end; the true end is a block of zeros.
        if bytes_of(shard, tar.offset, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"it ends early, at byte {tar.offset}")
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise ValueError(f"cannot index {shard} as an uncompressed tar file: {error}") from None
    return samples


def _label(shard: Path, parts: dict[str, tarfile.TarInfo], where: str) -> int:
    info = parts.get("cls") or parts.get("json")
    if info is None:
        raise ValueError(f"{where} has no label: neither .cls nor .json")
    data = bytes_of(shard, info.offset_data, info.size)
    try:
        label = int(data.decode("ascii")) if "cls" in parts else parse_json(data)["label"]
    except (ValueError, TypeError, KeyError):
        label = None
    if type(label) is not int:
        raise ValueError(f"the label of {where} is not a class index: {data[:40]!r}")
    return label


def _hugging_face(name: str, split: str, labeled: bool) -> tuple[list[Item], int | None]:
    rows = _load_dataset(name.removeprefix("hf:"), split)
    datasets, features = importlib.import_module("datasets"), rows.features
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    image = _column(images, ["image", "img"], f"cannot tell which column of {name} has images")
    # Undecoded, so that images of all sources are decoded in the same way.
    cells = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    items = [
        Item(f"{name} row {index}", partial(_read_cell, cells, image, index), 0)
        for index in range(len(rows))
    ]
    if not labeled:
        return items, None
    named = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    usual = ["label", "labels", "fine_label"]
    numbers = [key for key in usual if "int" in str(getattr(features.get(key), "dtype", ""))]
    label = _column(named or numbers, usual, f"cannot tell which column of {name} has labels")
    labels = [-1 if value is None else int(value) for value in rows[label]]
    items = [item._replace(label=value) for item, value in zip(items, labels, strict=True)]
    return items, len(features[label].names) if named else None


def _read_cell(rows: Any, column: str, index: int) -> bytes:
    cell = rows[index][column] or {"bytes": b""}
    data: bytes | None = cell["bytes"]
    return bytes_of(Path(cell["path"])) if data is None else data


def _column(candidates: list[str], usual: list[str], problem: str) -> str:
    """Return the only candidate, or else the first of the usual names among them."""
    if len(candidates) == 1:
        return candidates[0]
    for key in usual:
        if key in candidates:
            return key
    raise ValueError(f"{problem}: found {', '.join(candidates) or 'none'}")


def _load_dataset(name: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise ValueError("hf: needs one more package: pip install datasets") from None
    try:
        if not any(Path(name, mark).is_file() for mark in (_SINGLE, _DICT)):
            return datasets.load_dataset(name, split=split)
        rows = datasets.load_from_disk(name)
    except Exception as error:  # hubs, builders and file systems raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot load hf:{name}, split {split}: {first}") from None
    if isinstance(rows, dict) and split not in rows:
        raise ValueError(f"hf:{name} has no split {split}, only {', '.join(rows)}")
    return rows[split] if isinstance(rows, dict) else rows
