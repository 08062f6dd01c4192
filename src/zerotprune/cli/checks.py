"""Check every command line before anything is read: ranges of numbers, paths used twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..safety.ranges import RANGES, check_range

#: Options whose path is written. All other paths are read.
WRITTEN = ("out", "csv", "plot", "figure", "storage")
WRITTEN_FOLDERS = ("plots", "figures")
#: Options that are strings but may name a path: data sets, presets, methods.
NAMES = ("data", "train", "val", "teacher", "schedule", "method", "storage")
#: Files that are read from a folder of data, besides images.
READ_IN_FOLDERS = (".arrow", ".parquet", ".tar")

Named = tuple[str, Path]  # an option, and a path that it names


def check_call(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a command by the names of its options."""
    values = list(_flatten(arguments))
    for name, value in values:
        if name in RANGES and isinstance(value, (int, float)) and not isinstance(value, bool):
            check_range(name, value, _option(name))
    paths = [
        (_option(name), path, name in WRITTEN)
        for name, value in values
        if isinstance(value, Path) or name in NAMES
        for path in _paths(value)
        if name not in WRITTEN_FOLDERS
    ]
    read = [(name, path) for name, path, written in paths if not written]
    written = [(name, file) for name, path, written in paths if written for file in _files(path)]
    _check_folders(read, written)
    check_apart(read, written)


def check_apart(read: Sequence[Named], written: Sequence[Named]) -> None:
    """Refuse to write a file that the same call reads, or writes twice. Links are one file."""
    earlier = list(read)
    for name, path in written:
        for other, other_path in earlier:
            if _is_same_file(path, other_path):
                raise ValueError(
                    f"{name} {path} and {other} {other_path} are one file: give another name"
                )
        earlier.append((name, path))


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist yet
        return os.path.realpath(one) == os.path.realpath(other)


def _files(path: Path) -> list[Path]:
    """Return a file to write, and those that are written beside it."""
    from ..export import target_of

    if (target := target_of(path.name)) is not None:
        return target.files(path)
    if path.suffix == ".safetensors":
        from ..finetune.session import checkpoint_beside

        return [path, checkpoint_beside(path)]
    return [path]


def _flatten(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every value with the name of its option, from groups of options and lists, too."""
    for name, value in arguments.items():
        if is_dataclass(value):
            yield from _flatten({field.name: getattr(value, field.name) for field in fields(value)})
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from _flatten({name: item})
        elif value is not None:
            yield name, value


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _paths(value: Path | str) -> list[Path]:
    """Return the files and folders that a value names; none if it names something else."""
    if isinstance(value, Path):
        return [value]
    from ..data.sets import set_named

    known = set_named(value)
    if known is not None:
        return [known[1]]
    text = value.removeprefix("hf:").removeprefix("sqlite:///")
    text = re.sub(r"(\.py):\w+$", r"\1", text)
    if "://" in text:
        return []
    if re.search(r"[*?\[{]", text) and not Path(text).exists():
        from ..data.sources import expand_pattern

        return expand_pattern(text)
    return [Path(text)]


def _check_folders(read: Sequence[Named], written: Sequence[Named]) -> None:
    """Refuse to overwrite an image or a shard in a folder that is read."""
    from ..data.sources import IMAGE_SUFFIXES

    for name, path in written:
        if path.suffix.lower() not in IMAGE_SUFFIXES + READ_IN_FOLDERS or not path.exists():
            continue
        target = Path(os.path.realpath(path))
        for other, folder in read:
            if folder.is_dir() and target.is_relative_to(os.path.realpath(folder)):
                raise ValueError(
                    f"{name} {path} is one of the files in {other} {folder}: give another name"
                )
