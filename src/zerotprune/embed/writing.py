"""Write vectors into a folder: a file for each shard, and a manifest that says how they were made.

A file exists if and only if its shard is finished: it is written under another name and renamed. A
run that is killed at any moment loses at most the shards that were under way. The manifest is
written before the first file. A run with other settings, or with other images under the name of a
finished shard, is refused, so a folder never mixes vectors of two settings.
"""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..data.fingerprint import check_same
from ..safety.files import parse_json, replacing, text_of
from ..schedule import Schedule
from .shards import Shard, import_parquet

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder do the work twice
    fcntl = None  # type: ignore[assignment]

FileFormat = Literal["parquet", "npy"]
MANIFEST, VERSION = "manifest.json", 2
_LOCK = ".lock"


class Busy(ValueError):  # noqa: N818  it says what the folder is
    """Another process writes to the folder."""


@dataclass(frozen=True)
class Rows:
    """The vectors of some images; NaN, and a reason, where there is none."""

    keys: tuple[str, ...]
    vectors: NDArray[Any]
    errors: tuple[str | None, ...]


@dataclass
class VectorFolder:
    """A folder of vectors, and how they were made."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)  # what a vector depends on
    form: FileFormat = "parquet"
    shards: dict[str, str] = field(default_factory=dict)  # identity by name

    def file(self, name: str) -> Path:
        return self.path / f"{name}.{self.form}"

    def admit(self, shards: Sequence[Shard]) -> None:
        """Add shards to the manifest; raise ValueError if settings or an earlier shard differ."""
        identities = {shard.name: shard.identity() for shard in shards}
        manifest = read_manifest(self.path)
        if manifest is not None:
            advice = "give another --out"
            message = f"{self.path} has other vectors"
            check_same(_flat(manifest["settings"]), _flat(self.settings), message, advice)
            check_same({"form": manifest["form"]}, {"form": self.form}, message, advice)
            for name, identity in manifest["shards"].items():
                if identities.get(name, identity) != identity:
                    raise ValueError(
                        f"{self.path} has vectors of a different {name}: its images have changed "
                        "since then, in size or date, or --images, --column or --key has; "
                        f"{advice}"
                    )
            identities = {**manifest["shards"], **identities}
        self.shards = identities
        if manifest is None or manifest["shards"] != identities:
            self._write_manifest()

    def wait_for(self, shards: Sequence[Shard]) -> None:
        """Wait until the first process has added the shards to the manifest."""
        names = {shard.name for shard in shards}
        while True:
            manifest = read_manifest(self.path)
            if manifest is not None and names <= manifest["shards"].keys():
                return
            time.sleep(0.1)

    def begin(self, rank: int) -> None:
        """Forget that this process, one of several, has ended in an earlier run."""
        self._end_of(rank).unlink(missing_ok=True)

    def end(self, rank: int) -> None:
        """Note that this process, one of several, has done its share."""
        self._end_of(rank).touch()

    def wait_for_ends(self, world: int) -> None:
        """Wait until all processes have done their shares."""
        while not all(self._end_of(rank).exists() for rank in range(world)):
            time.sleep(0.1)

    def _end_of(self, rank: int) -> Path:
        return self.path / f".ended-{rank}"

    def _write_manifest(self) -> None:
        data = {"version": VERSION, "form": self.form, "settings": self.settings,
                "shards": self.shards}  # fmt: skip
        _put(self.path / MANIFEST, (json.dumps(data, indent=1) + "\n").encode())

    def is_finished(self, name: str) -> bool:
        return self.file(name).exists()

    def write(self, name: str, parts: Sequence[Rows]) -> None:
        """Write the vectors of a whole shard, completely or not at all."""
        keys = tuple(_text(key) for part in parts for key in part.keys)
        errors = tuple(error and _text(error) for part in parts for error in part.errors)
        vectors = np.concatenate([part.vectors for part in parts])
        encode = _parquet if self.form == "parquet" else _npy
        _put(self.file(name), encode(Rows(keys, vectors, errors)))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what a folder's manifest says; None if it has none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        data = parse_json(text_of(path, "manifest"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    keys = {"version", "form", "settings", "shards"}
    if not isinstance(data, Mapping) or set(data) != keys or data["version"] != VERSION:
        raise ValueError(f"{path} is not a manifest of vectors that this release can read")
    if data["form"] not in get_args(FileFormat) or not all(
        isinstance(data[name], Mapping) for name in ("settings", "shards")
    ):
        raise ValueError(f"{path} is not a manifest of vectors that this release can read")
    return dict(data)


def earlier_schedule(folder: Path, request: str) -> Schedule | None:
    """Return the schedule of a folder's vectors if they were made with the same options, so that
    all use what was measured once.

    Args:
        folder: It need not exist.
        request: Budget and method, as the user gave them.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest["settings"].get("asked") != request:
        return None
    line = manifest["settings"].get("schedule")
    if not isinstance(line, str):
        raise ValueError(f"{folder / MANIFEST} is damaged: its schedule is not text")
    return Schedule.from_json(line)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested settings, so that the first difference is between single values."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def check_folder(path: Path) -> None:
    """Raise ValueError, before any work is done, if vectors cannot go to this folder."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: --out must be a folder")
    if path.is_dir() and read_manifest(path) is None:
        others = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
        if others:
            raise ValueError(f"{path} has {others[0]} and no manifest: give a new or empty folder")


def leftovers(path: Path) -> list[Path]:
    """Return the half-written files in a folder: of a killed run, if no other run is writing
    there."""
    return list(path.glob(".zerotprune-*.tmp"))


@contextmanager
def lock_folder(path: Path, alone: bool = True, left: Sequence[Path] = ()) -> Iterator[None]:
    """Create the folder if needed, and keep other runs out of it until this one ends.

    Args:
        path: The folder.
        alone: Take the lock; True in the first process of a run.
        left: Files to remove under the lock: the `leftovers` from before this run started. Newer
            ones may be those that another process of this run is writing.
    """
    path.mkdir(parents=True, exist_ok=True)
    if not alone:
        yield
        return
    with (path / _LOCK).open("w") as file:
        # Forked processes do not inherit this lock: it ends with this process, although those that
        # decode for it may live a little longer.
        if fcntl is not None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(
                    f"another process is writing to {path}: wait for it, or give another --out"
                ) from None
        for file_left in left:
            file_left.unlink(missing_ok=True)
        yield


def _put(path: Path, data: bytes) -> None:
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason += ": free some space and run it again; finished shards stay"
        raise OSError(f"cannot write {path}: {reason}") from None


def _text(name: str) -> str:
    """Escape what is not UTF-8 in a name, so that different names stay different."""
    return name.encode("utf-8", "backslashreplace").decode()


def _parquet(rows: Rows) -> bytes:
    """Encode as parquet with the columns `key`, `vector` and `error`; no vector where there is an
    error."""
    parquet = import_parquet()
    import pyarrow as pa

    width = rows.vectors.shape[1]
    values = pa.array(np.ascontiguousarray(rows.vectors).reshape(-1))
    failed = pa.array([error is not None for error in rows.errors], type=pa.bool_())
    vectors = pa.FixedSizeListArray.from_arrays(values, width, mask=failed)
    table = pa.table({
        "key": pa.array(rows.keys, type=pa.string()),
        "vector": vectors,
        "error": pa.array(rows.errors, type=pa.string()),
    })  # fmt: skip
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="none", use_dictionary=False)
    return buffer.getvalue()


def _npy(rows: Rows) -> bytes:
    """Encode as one structured array: it can be mapped to memory, and its vectors are a field."""
    count, width = rows.vectors.shape
    errors = [error or "" for error in rows.errors]
    kind = np.dtype([
        ("key", f"U{max((1, *map(len, rows.keys)))}"),
        ("vector", rows.vectors.dtype, (width,)),
        ("error", f"U{max((1, *map(len, errors)))}"),
    ])  # fmt: skip
    table = np.empty(count, kind)
    table["key"], table["vector"], table["error"] = rows.keys, rows.vectors, errors
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    return buffer.getvalue()
