"""Schedules that were searched for single models, shipped with how they were found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...backbones import unwrap
from ...schedule import Schedule

FOLDER = Path(__file__).with_name("tuned")
TOLERANCE = 0.005  # a tuned schedule is for its own budget and for none beside it


class Tuned(NamedTuple):
    """One file of the folder."""

    model: str  # timm's name
    tokens: int  # of one picture: a schedule is for one resolution
    gmacs: float  # the budget
    method: str
    schedule: Schedule
    provenance: dict[str, Any]


@cache
def all_tuned() -> tuple[Tuned, ...]:
    return tuple(read(path) for path in sorted(FOLDER.glob("*.json")))


def tuned_at(model: nn.Module, tokens: int, method: str) -> list[Tuned]:
    """All that was searched for this model at this many tokens."""
    wanted = (name_of(model), tokens, method)
    return [each for each in all_tuned() if (each.model, each.tokens, each.method) == wanted]


def tuned_for(model: nn.Module, tokens: int, gmacs: float, method: str) -> Schedule | None:
    """The schedule that was searched for this model at this budget, if there is one."""
    for each in tuned_at(model, tokens, method):
        if abs(each.gmacs - gmacs) <= TOLERANCE * gmacs:
            return each.schedule
    return None


def name_of(model: nn.Module) -> str:
    """timm's name of the model with the tag of its weights, as far as it says."""
    config: Any = getattr(unwrap(model), "pretrained_cfg", None) or {}
    name, tag = config.get("architecture", ""), config.get("tag", "")
    return f"{name}.{tag}" if tag else str(name)


def read(path: Path) -> Tuned:
    held = json.loads(path.read_text(encoding="utf-8"))
    schedule = Schedule.from_json(json.dumps(held.pop("schedule")))
    return Tuned(schedule=schedule, **held)


def write(path: Path, found: Tuned) -> None:
    """As `_read` takes it."""
    held = {**found._asdict(), "schedule": json.loads(found.schedule.to_json())}
    path.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
