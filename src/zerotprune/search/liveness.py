"""Who runs a trial, and whether they still do."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

_BEAT = 10.0  # seconds between two signs of life
_GRACE = 60.0  # … and without one, after which a worker is taken for gone


def signature() -> dict[str, Any]:
    """What a trial says of who runs it."""
    return {"host": socket.gethostname(), "process": os.getpid()}


def signed_by_us(trial: FrozenTrial) -> bool:
    return signature().items() <= trial.user_attrs.items()


class Watch:
    """Which workers are gone. On this machine a process is there or is not; of others we see
    their signs of life, by our own clock: theirs may be wrong."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, float]] = {}

    def gone(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        return [
            trial
            for trial in trials
            if trial.state == TrialState.RUNNING and (_dead_here(trial) or self._silent(trial))
        ]

    def _silent(self, trial: FrozenTrial) -> bool:
        sign, now = trial.user_attrs.get("beat"), time.monotonic()
        last, since = self._seen.setdefault(trial.number, (sign, now))
        if sign != last:
            self._seen[trial.number] = (sign, now)
            return False
        return now - since > _GRACE


def _dead_here(trial: FrozenTrial) -> bool:
    process = trial.user_attrs.get("process")
    if trial.user_attrs.get("host") != socket.gethostname() or not isinstance(process, int):
        return False
    return not _runs(process)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it does, as somebody else
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or it has ended just now: silence will tell
        return True
    return state != "Z"  # killed, and nobody has taken notice of it yet


class Alive:
    """Gives signs of life for a trial while it runs."""

    def __init__(self, study: Study, trial: FrozenTrial) -> None:
        self._study, self._trial, self._done = study, trial, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        beats = 0
        while not self._done.wait(_BEAT):
            beats += 1
            try:
                self._study._storage.set_trial_user_attr(self._trial._trial_id, "beat", beats)
            except (UpdateFinishedTrialError, StorageInternalError):
                continue  # too late, or the storage is busy: the next one may come through
