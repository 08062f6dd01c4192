"""Split images into shards, and shards into pieces.

A shard is a tar file, a parquet file, or a run of the images in a folder; its vectors go to one
file. A piece is a batch of a shard's images by their places, small enough to be sent to another
process that reads and decodes it. Pieces depend on the data and the batch size alone, not on the
engine, so every engine gives the model the same batches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..data.sources import expand_pattern, index_tar, is_image, tar_shards, visible_files
from ..safety.files import bytes_of

#: columns in which images and keys are looked for by default
IMAGE_COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "path",
                 "image_path", "file_name", "filename")  # fmt: skip
KEY_COLUMNS = ("key", "__key__", "id", "image_id", "path", "image_path", "file_name", "filename")
IMAGES = 10_000  # of a folder that make a shard by default
_ENDS = 65536  # bytes at both ends of a file that are hashed
#: errors that may be gone when a file is read again: the shard stays unfinished, for the next run
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOTCONN)


class Place(NamedTuple):
    """Where the bytes of an image are: in a file, or in a row of a parquet file."""

    path: str
    offset: int = 0
    size: int = -1
    column: str = ""  # of a parquet file; then `offset` is the row


@dataclass(frozen=True)
class Piece:
    """A batch of a shard: keys, and the places of the images."""

    shard: int
    number: int
    pieces: int  # in the shard
    total: int = 0  # images in the shard
    keys: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    failure: str = ""  # why the shard could not be cut

    def read(self) -> list[bytes | OSError]:
        """Return the bytes of each image, or why they cannot be read.

        Raises:
            OSError: If reading may succeed next time.
        """
        return [_read(place) for place in self.places]


def _read(place: Place) -> bytes | OSError:
    try:
        if not place.column:
            return bytes_of(Path(place.path), place.offset, place.size)
        return _cell(place)
    except OSError as error:
        if error.errno in _PASSING:
            raise OSError(error.errno, error.strerror, place.path) from None
        return OSError(error.strerror or str(error))


@dataclass(frozen=True)
class Shard(ABC):
    """Images whose vectors go to one file, called `name`."""

    name: str

    @abstractmethod
    def places(self) -> tuple[list[str], list[Place]]:
        """Return the keys, in order, and the places of their images."""

    @abstractmethod
    def identity(self) -> str:
        """Return a cheap hash that differs from that of other shards of the same name."""

    @property
    @abstractmethod
    def weight(self) -> int:
        """The size of the shard, in bytes or images: the same unit for all shards of a run."""

    def cut(self, shard: int, size: int) -> Iterator[Piece]:
        """Cut the shard, number `shard` of the run, into one or more pieces."""
        try:
            keys, places = self.places()
            _check_unique(keys, self.name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield Piece(shard, 0, 1, failure=" ".join(reason.split()))
            return
        starts = range(0, len(keys), size) or range(1)
        for number, start in enumerate(starts):
            part = slice(start, start + size)
            keyed = tuple(keys[part])
            yield Piece(shard, number, len(starts), len(keys), keyed, tuple(places[part]))


def _check_unique(keys: Sequence[str], name: str) -> None:
    seen = set[str]()
    for key in keys:
        if key in seen:
            raise ValueError(f"{name} has the key {key} twice: keys must be unique in a shard")
        seen.add(key)


@dataclass(frozen=True)
class FolderShard(Shard):
    """A run of the images in a folder; their keys are their paths in it."""

    folder: Path
    keys: tuple[str, ...]

    def places(self) -> tuple[list[str], list[Place]]:
        return list(self.keys), [Place(str(self.folder / key)) for key in self.keys]

    def identity(self) -> str:
        lines = [f"{key} {_size_and_date(self.folder / key)}" for key in self.keys]
        return short_hash("\n".join(lines).encode("utf-8", "surrogateescape"))

    @property
    def weight(self) -> int:
        return len(self.keys)


def _size_and_date(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "unreadable"
    return f"{status.st_size} {status.st_mtime_ns}"


@dataclass(frozen=True)
class FileShard(Shard):
    """A file that holds images."""

    path: Path

    def identity(self) -> str:
        size = self.weight
        ends = bytes_of(self.path, 0, _ENDS) + bytes_of(self.path, max(0, size - _ENDS))
        return short_hash(f"{size} ".encode() + ends)

    @cached_property
    def weight(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True)
class TarShard(FileShard):
    """A tar file as in WebDataset: a key is a file name up to its first dot."""

    def places(self) -> tuple[list[str], list[Place]]:
        images = {key: parts["image"] for key, parts in index_tar(self.path).items()
                  if "image" in parts}  # fmt: skip
        return list(images), [
            Place(str(self.path), info.offset_data, info.size) for info in images.values()
        ]


@dataclass(frozen=True)
class ParquetShard(FileShard):
    """A parquet file with the bytes of images, or their paths, in a column."""

    column: str | None = None
    key: str | None = None

    def identity(self) -> str:
        try:
            columns = self.columns()
        except (OSError, ValueError):  # no vector comes from a file that cannot be read
            columns = ("", "")
        return short_hash(" ".join((super().identity(), *columns)).encode())

    def columns(self) -> tuple[str, str]:
        """Return the columns of images and of keys; without a column of keys, "" for it."""
        names = _parquet(str(self.path)).schema_arrow.names
        column = _find_column(
            self.column, IMAGE_COLUMNS, names, f"{self.path} has no column of images"
        )
        problem = None if self.key is None else f"{self.path} has no column of keys"
        return column, _find_column(self.key, KEY_COLUMNS, names, problem)

    def places(self) -> tuple[list[str], list[Place]]:
        file, (column, key) = _parquet(str(self.path)), self.columns()
        count = file.metadata.num_rows
        keys = [f"{row:09d}" for row in range(count)]
        if key:
            values = file.read([key]).column(key).to_pylist()
            if None in values:
                raise ValueError(f"{self.path} has no key in row {values.index(None)}")
            keys = list(map(str, values))
        if _holds_text(file.schema_arrow.field(column).type):
            paths = file.read([column]).column(column).to_pylist()
            return keys, [Place(str(self.path.parent / (path or ""))) for path in paths]
        return keys, [Place(str(self.path), row, -1, column) for row in range(count)]


def _find_column(
    column: str | None, usual: Sequence[str], names: Sequence[str], problem: str | None
) -> str:
    """Return the column of that name, or the first of the usual names. If there is none, raise
    ValueError with `problem`, or return "" without one."""
    chosen = next((name for name in ((column,) if column else usual) if name in names), "")
    if not chosen and problem is not None:
        expected = column or f"one of {', '.join(usual)}"
        raise ValueError(f"{problem}: expected {expected}, got {', '.join(names) or 'no columns'}")
    return chosen


def _holds_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(holds(kind) for holds in kinds)


def _parquet(path: str) -> Any:
    status = Path(path).stat()
    return _open_file(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _open_file(path: str, size: int, changed: int) -> Any:
    """Open a file once, and again if it was replaced."""
    parquet = import_parquet()
    import pyarrow as pa

    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a whole parquet file: {error}") from None


def import_parquet() -> Any:
    """Import pyarrow's parquet, or say what to install."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(
            "parquet needs one more package: pip install 'zerotprune[embed]'"
        ) from None
    return parquet


@lru_cache(maxsize=2)
def _row_group(file: Any, column: str, group: int) -> Any:
    """Read one column of a row group; it is cached for the next pieces."""
    return file.read_row_group(group, [column]).column(column)


def _cell(place: Place) -> bytes | OSError:
    file = _parquet(place.path)
    metadata, first = file.metadata, 0
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        if place.offset < first + count:
            value = _row_group(file, place.column, group)[place.offset - first].as_py()
            break
        first += count
    if isinstance(value, dict):  # as Hugging Face's datasets write it
        data, path = value.get("bytes"), value.get("path")
        value = bytes_of(Path(place.path).parent / path) if data is None and path else data
    if not isinstance(value, bytes):
        return OSError("the row has no image")
    return value


def short_hash(data: bytes) -> str:
    """Return a short hash that names some bytes."""
    return hashlib.sha256(data).hexdigest()[:24]


def find_shards(
    data: str, *, images: int | None = None, column: str | None = None, key: str | None = None
) -> list[Shard]:
    """Find the shards that `data` names.

    Args:
        data: A folder of images, at any depth; tar or parquet files: one, a folder of them, a
            glob, or with braces.
        images: Images of a folder that make a shard. Default: 10,000.
        column: The column of images in parquet files.
        key: The column of keys there.
    """
    parquet = _parquet_files(data)
    if not parquet and (column or key):
        raise ValueError("--column and --key are for parquet files, and there are none")
    tars = [] if data.endswith(".parquet") and parquet else tar_shards(data)
    if tars and parquet and not (column or key):
        # img2dataset writes a parquet file about each tar file, under the same name.
        if {path.stem for path in parquet} - {path.stem for path in tars}:
            raise ValueError(
                f"{data} has tar and parquet files: give '{data}/*.tar', or --column for parquet"
            )
        parquet = []
    if images is not None and (parquet or tars):
        raise ValueError(
            f"--images is for a folder of images, and {data} has files that are shards"
        )
    if parquet:
        import_parquet()
        return [ParquetShard(name, path, column, key) for name, path in _names(parquet).items()]
    if tars:
        return [TarShard(name, path) for name, path in _names(tars).items()]
    folder = _absolute(Path(data))
    keys = [path.relative_to(folder).as_posix() for path in visible_files(folder) if is_image(path)]
    if not keys:
        raise ValueError(f"no images in {data}")
    images = images or IMAGES
    return [
        FolderShard(f"images-{number:05d}", folder, tuple(keys[start : start + images]))
        for number, start in enumerate(range(0, len(keys), images))
    ]


def _parquet_files(data: str) -> list[Path]:
    place = Path(data)
    if place.is_dir():
        files = sorted(path for path in place.iterdir() if not path.name.startswith("."))
        return [path for path in files if path.suffix == ".parquet" and path.is_file()]
    if not data.endswith(".parquet"):
        return []
    paths = [place]
    if not place.exists():
        paths = expand_pattern(data) if re.search(r"[*?\[{]", data) else []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}, which {data} names")
    return list(dict.fromkeys(paths))


def _absolute(path: Path) -> Path:
    """Return a path that processes with another working directory understand; links stay."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _names(paths: Sequence[Path]) -> dict[str, Path]:
    """Give each file a unique name, its path below the folder that has them all; the paths are
    absolute."""
    absolute = [_absolute(path) for path in paths]
    root = Path(os.path.commonpath([path.parent for path in absolute]))
    named: dict[str, Path] = {}
    for path in absolute:
        name = "-".join(path.relative_to(root).with_suffix("").parts)
        if name in named:
            raise ValueError(f"{named[name]} and {path} would both be called {name}: rename one")
        named[name] = path
    return named
