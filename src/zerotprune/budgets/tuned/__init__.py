"""Schedules that were searched for single models, each with its provenance."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ...backbones import backbone
from ...method import Method
from ...safety.files import replacing
from ...schedule import Schedule

FOLDER = Path(__file__).parent


class Tuned(NamedTuple):
    """One file of the folder."""

    model: str  # its name in its library
    tokens: int  # of one image: a schedule is for one image size
    gmacs: float  # the budget
    schedule: Schedule
    provenance: dict[str, Any]


@cache
def all_tuned() -> tuple[Tuned, ...]:
    return tuple(read(path) for path in sorted(FOLDER.glob("*.json")))


def tuned_at(model: nn.Module, method: Method | None = None) -> list[Tuned]:
    """List the schedules that were searched for this model and size, of one method or of all."""
    vit = backbone(model)
    return [
        tuned
        for tuned in all_tuned()
        if (tuned.model, tuned.tokens) == (vit.name, vit.geometry.tokens)
        and method in (None, tuned.schedule.method)
    ]


def read(path: Path) -> Tuned:
    data = json.loads(path.read_text(encoding="utf-8"))
    schedule = Schedule.from_json(json.dumps(data.pop("schedule")))
    return Tuned(schedule=schedule, **data)


def write(path: Path, tuned: Tuned) -> None:
    data = {**tuned._asdict(), "schedule": json.loads(tuned.schedule.to_json())}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
