"""What is checked of every call before anything is read: ranges of numbers, paths used twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..files import check_apart
from ..ranges import RANGES, check_range

#: Options by what becomes of the path they name. All other paths are read.
WRITTEN = ("out", "csv", "plot", "figure", "storage")
WRITTEN_FOLDERS = ("plots", "figures")
#: Options that name a path without being one: data sets, presets, methods.
NAMES = ("data", "train", "val", "teacher", "schedule", "method", "storage")
#: What a folder of data is read for.
READ_IN_FOLDERS = (".arrow", ".parquet", ".tar")


def check_call(arguments: Mapping[str, Any]) -> None:
    given = list(_flat(arguments))
    for name, value in given:
        if name in RANGES and isinstance(value, (int, float)) and not isinstance(value, bool):
            check_range(name, value, _called(name))
    paths = [
        (_called(name), path, name in WRITTEN)
        for name, value in given
        if isinstance(value, Path) or name in NAMES
        for path in _paths(value)
        if name not in WRITTEN_FOLDERS
    ]
    read = [(name, path) for name, path, written in paths if not written]
    written = [(name, each) for name, path, written in paths if written for each in _with(path)]
    _check_folders(read, written)
    check_apart(_named(read), _named(written))


def _with(path: Path) -> list[Path]:
    """A file to write, and those that are written beside it."""
    from ..export import target_of

    if (target := target_of(path.name)) is not None:
        return target.files(path)
    if path.suffix == ".safetensors":
        from ..finetune.checkpoint import checkpoint_beside

        return [path, checkpoint_beside(path)]
    return [path]


def _flat(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value by the name of its option: groups of options and lists are taken apart."""
    for name, value in arguments.items():
        if is_dataclass(value):
            yield from _flat({each.name: getattr(value, each.name) for each in fields(value)})
        elif isinstance(value, (list, tuple)):
            for each in value:
                yield from _flat({name: each})
        elif value is not None:
            yield name, value


def _called(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _paths(value: Path | str) -> list[Path]:
    """The files and folders behind what was typed; none where it is the name of something else."""
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


def _named(paths: list[tuple[str, Path]]) -> dict[str, Path]:
    """By names that tell several paths of one option apart."""
    return {f"{name} {path}": path for name, path in paths}


def _check_folders(read: list[tuple[str, Path]], written: list[tuple[str, Path]]) -> None:
    """Refuse to write over an image, or a shard, that lies in a folder which is read."""
    from ..data.sources import ENDINGS

    for name, path in written:
        if path.suffix.lower() not in ENDINGS + READ_IN_FOLDERS or not path.exists():
            continue
        whole = Path(os.path.realpath(path))
        for other, folder in read:
            if folder.is_dir() and whole.is_relative_to(os.path.realpath(folder)):
                raise ValueError(
                    f"{name} {path} is one of the files in {other} {folder}: give another name"
                )
