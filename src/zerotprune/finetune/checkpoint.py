"""Checkpoints: a training after a whole epoch, in one file that is whole or as it was before."""

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
#: what is told of each epoch
ROW = {"epoch", "loss", "train_top1", "top1", "seconds"}


@dataclass
class Checkpoint:
    """What training came to after some epochs. `identity` says which training: another one does
    not go on from here."""

    identity: Mapping[str, Any]
    #: as JSON: it may have been measured, and would come out otherwise at another time
    schedule: str
    state: Mapping[str, Any] = field(default_factory=dict)
    #: what each epoch came to
    history: list[dict[str, float]] = field(default_factory=list)
    #: top-1 before training, and of the unpruned model
    before: dict[str, float] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        return len(self.history)

    def save(self, path: Path) -> None:
        """It is made in memory first: a disk that is full says so in its own words then."""
        made = io.BytesIO()
        torch.save({"version": _VERSION, **vars(self)}, made)
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(made.getbuffer())
        except OSError as error:
            raise OSError(
                f"{path} cannot be written after epoch {self.epochs}: {error.strerror or error}; "
                + ("what it held before is as it was" if path.exists() else "nothing is there yet")
            ) from None

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, Any]) -> Checkpoint:
        """That of the same training; another one's is refused, naming the difference."""
        held = _read(path)
        if isinstance(held, dict) and held.get("version", _VERSION) != _VERSION:
            raise ValueError(f"{path} was written by another release: remove it to start over")
        if not _is_whole(held):
            raise ValueError(
                f"{path} is not a checkpoint of a fine-tuning: move it away, or give another --out"
            )
        found = cls(**{name: value for name, value in held.items() if name != "version"})
        check_same(found.identity, identity, f"{path} is the checkpoint of another training",
                   "remove it to start over, or give another --out")  # fmt: skip
        return found


def _read(path: Path) -> Any:
    """What a file of tensors and plain values holds; None where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on pickles that we refuse
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # the unpickler may fail in any way on a foreign file
        return None


def _is_whole(held: Any) -> bool:
    """Does it hold what a checkpoint holds? Not, does it fit the training."""
    if not isinstance(held, dict) or held.keys() != {"version", *_KINDS}:
        return False
    if not all(isinstance(held[name], kind) for name, kind in _KINDS.items()):
        return False
    rows = [held["before"], *held["history"]]
    if not all(isinstance(row, dict) and _numbers(row) for row in rows):
        return False
    return all(row.keys() == ROW for row in held["history"])


def _numbers(row: Mapping[str, Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in row.values())


def checkpoint_beside(out: Path) -> Path:
    """Where it lies while a training for this file is under way."""
    return out.with_name(f"{out.name}.checkpoint")
