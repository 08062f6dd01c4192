"""Check every command line before anything is read, by the types of its options.

The types are annotated with marks: `Annotated[int, RANGES["batch"]]` is a number in a range,
`Annotated[Path, Read()]` is read, `Annotated[Path, Written()]` is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ..safety.ranges import Range

#: Files that are read from a folder of data, besides images.
READ_IN_FOLDERS = (".arrow", ".parquet", ".tar")

Named = tuple[str, Path]  # an option, and a path that it names


@dataclass(frozen=True)
class Read:
    """Mark an option that names an input: a path, or a string that may name one."""


def _itself(path: Path) -> list[Path]:
    return [path]


@dataclass(frozen=True)
class Written:
    """Mark an option that names a file to write.

    Args:
        files: Returns all files that are written for a path. Default: only the path itself.
    """

    files: Callable[[Path], list[Path]] = _itself


def marks(hint: Any) -> Iterator[Any]:
    """Yield what a type is annotated with, the items of a list or a union included."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for part in get_args(hint):
        yield from marks(part)


def check_call(command: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a command by the types of its options."""
    read, written = list[Named](), list[Named]()
    for option, mark, value in _marked(command, arguments):
        if isinstance(mark, Range) and isinstance(value, (int, float)):
            mark.check(option, value)
        elif isinstance(mark, Read):
            read += [(option, path) for path in _paths(value)]
        elif isinstance(mark, Written):
            written += [(option, file) for path in _paths(value) for file in mark.files(path)]
    _check_folders(read, written)
    check_apart(read, written)


def _marked(
    annotated: Callable[..., Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield option, mark and value, from groups of options and lists, too."""
    hints = get_type_hints(annotated, include_extras=True)
    for name, value in values.items():
        if is_dataclass(value):
            yield from _marked(type(value), vars(value))
            continue
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if item is not None:
                option = f"--{name.replace('_', '-')}"
                yield from ((option, mark, item) for mark in marks(hints[name]))


def check_apart(read: Sequence[Named], written: Sequence[Named]) -> None:
    """Refuse to write a file that the same call reads or writes already, also through a link."""
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
