"""Schedules that were searched for single models, shipped with how they were found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...backbones import backbone
from ...files import replacing
from ...method import Method
from ...methods import name_of
from ...schedule import Schedule
from ..budget import TOLERANCE

FOLDER = Path(__file__).parent


class Tuned(NamedTuple):
    """One file of the folder."""

    model: str  # the library's name of it
    tokens: int  # of one image: a schedule is for one resolution
    gmacs: float  # the budget
    schedule: Schedule
    provenance: dict[str, Any]


@cache
def all_tuned() -> tuple[Tuned, ...]:
    return tuple(read(path) for path in sorted(FOLDER.glob("*.json")))


def tuned_at(model: nn.Module, method: Method | None = None) -> list[Tuned]:
    """All that was searched for this model at its size, by this method or by any."""
    vit = backbone(model)
    wanted = (vit.name, vit.geometry.tokens)
    return [
        each
        for each in all_tuned()
        if (each.model, each.tokens) == wanted and method in (None, each.schedule.method)
    ]


def tuned_schedule(model: nn.Module, method: Method, gmacs: float, unpruned: float) -> Schedule:
    """The schedule that was searched for this model at this budget."""
    at_hand = tuned_at(model, method)
    for each in at_hand:
        if abs(each.gmacs - gmacs) <= TOLERANCE * gmacs:
            return each.schedule
    known = ", ".join(f"{each.gmacs / unpruned:.2f} ({each.gmacs:g} GMACs)" for each in at_hand)
    others = {name_of(each.schedule.method) for each in tuned_at(model)}
    where = f"there are some at cost {known}" if known else "there is none at all"
    if others and not at_hand:
        where += f", but there are some of {', '.join(sorted(others))}"
    raise ValueError(
        f"no schedule of {name_of(method)} was searched for this model at cost "
        f"{gmacs / unpruned:.2f} ({gmacs:.4g} GMACs); {where}"
    )


def read(path: Path) -> Tuned:
    held = json.loads(path.read_text(encoding="utf-8"))
    schedule = Schedule.from_json(json.dumps(held.pop("schedule")))
    return Tuned(schedule=schedule, **held)


def write(path: Path, tuned: Tuned) -> None:
    """As `read` takes it; whole or not at all."""
    held = {**tuned._asdict(), "schedule": json.loads(tuned.schedule.to_json())}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
