"""Arguments that several commands share: how a schedule is named on the command line."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..pruning import schedule_for
from ..schedule import PRESETS, Schedule


def read_schedule(
    model: nn.Module, schedule: str | None, gmacs: float | None, keep: float | None
) -> Schedule | None:
    """A preset's name, a JSON file, or a budget to solve; None if none of them is given.

    By a budget every command takes the paper's form, so that methods meet on equal terms.
    """
    if sum(given is not None for given in (schedule, gmacs, keep)) > 1:
        raise ValueError("give one of --schedule, --gmacs and --keep, not several")
    if schedule is None:
        if gmacs is None and keep is None:
            return None
        return schedule_for(model, gmacs=gmacs, keep=keep, tuned=False)
    return preset_or_file(schedule)


def preset_or_file(schedule: str) -> Schedule:
    if schedule in PRESETS:
        return PRESETS[schedule]
    if not Path(schedule).is_file():
        presets = ", ".join(PRESETS)
        raise ValueError(f"{schedule!r} is neither a preset ({presets}) nor a file")
    return Schedule.load(schedule)
