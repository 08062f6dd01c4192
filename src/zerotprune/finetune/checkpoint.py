"""Checkpoints: a training after a whole epoch, in one file that is replaced atomically."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..data.fingerprint import check_same
from ..files import replacing

_VERSION = 1
_KINDS = {"identity": dict, "schedule": str, "state": dict, "history": list, "before": dict}
#: what is recorded for every epoch
ROW = {"epoch", "loss", "train_top1", "top1", "seconds"}


@dataclass
class Checkpoint:
    """A training after some epochs.

    Args:
        identity: Which training it is; another one cannot continue from here.
        schedule: As JSON. It may have been measured, so it is stored and not solved again.
        state: Model and optimizer.
        history: One row per epoch.
        before: Top-1 before training, and of the unpruned model.
    """

    identity: Mapping[str, Any]
    schedule: str
    state: Mapping[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        return len(self.history)

    def save(self, path: Path) -> None:
        """Write the file; serialise it in memory first, so that a full disk gives a clear error."""
        buffer = io.BytesIO()
        torch.save({"version": _VERSION, **vars(self)}, buffer)
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(buffer.getbuffer())
        except OSError as error:
            raise OSError(
                f"{path} cannot be written after epoch {self.epochs}: {error.strerror or error}; "
                + ("the previous epoch is still there" if path.exists() else "nothing was saved")
            ) from None

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, Any]) -> Checkpoint:
        """Load the checkpoint of this training; if it is another's, name the first difference."""
        data = _read(path)
        if isinstance(data, dict) and data.get("version", _VERSION) != _VERSION:
            raise ValueError(f"{path} was written by another release: remove it to start over")
        if not _is_complete(data):
            raise ValueError(
                f"{path} is not a checkpoint of a fine-tuning: move it away, or give another --out"
            )
        loaded = cls(**{name: value for name, value in data.items() if name != "version"})
        check_same(loaded.identity, identity, f"{path} is the checkpoint of another training",
                   "remove it to start over, or give another --out")  # fmt: skip
        return loaded


def _read(path: Path) -> Any:
    """Read a file of tensors and plain values; return None for any other file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about pickles that we refuse
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # the unpickler may fail in any way on a foreign file
        return None


def _is_complete(data: Any) -> bool:
    """Check the types of all parts, not whether they fit the training."""
    if not isinstance(data, dict) or data.keys() != {"version", *_KINDS}:
        return False
    if not all(isinstance(data[name], kind) for name, kind in _KINDS.items()):
        return False
    rows = [data["before"], *data["history"]]
    if not all(isinstance(row, dict) and _has_numbers(row) for row in rows):
        return False
    return all(row.keys() == ROW for row in data["history"])


def _has_numbers(row: Mapping[str, Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in row.values())


def checkpoint_beside(out: Path) -> Path:
    """Return where the checkpoint is while a training for this file is running."""
    return out.with_name(f"{out.name}.checkpoint")
