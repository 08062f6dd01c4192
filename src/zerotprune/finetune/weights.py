"""Files of trained weights: safetensors that carry the schedule they were trained for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..backbones import transformer
from ..files import replacing
from ..schedule import Schedule

ENDING = ".safetensors"
_SCHEDULE, _ABOUT = "zerotprune.schedule", "zerotprune.about"


def check_name(out: Path) -> None:
    """--weights reads what ends so as safetensors."""
    if out.suffix != ENDING:
        raise ValueError(f"--out is a file of weights: its name must end in {ENDING}, got {out}")


def save(out: Path, model: nn.Module, schedule: Schedule, about: Mapping[str, Any]) -> None:
    """The weights of the model, with a schedule and where they come from; whole or not at all."""
    from safetensors.torch import save as serialised

    held = transformer(model) if isinstance(model, nn.Sequential) else model
    state = {
        name: value.detach().cpu().contiguous().clone() for name, value in held.state_dict().items()
    }
    notes = {_SCHEDULE: schedule.to_json(), _ABOUT: json.dumps(dict(about))}
    made = serialised(state, notes)  # in memory first: a disk that is full says so in words
    try:
        with replacing(out) as temporary:
            temporary.write_bytes(made)
    except OSError as error:
        raise OSError(f"{out} cannot be written: {error.strerror or error}") from None


def schedule_in(path: Path) -> Schedule | None:
    """The schedule that a file of weights was trained for; None for any other file, and for the
    weights of an unpruned model, whose schedule has no stages."""
    if path.suffix != ENDING or not path.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            held = (file.metadata() or {}).get(_SCHEDULE)
    except SafetensorError:
        return None  # whoever reads the weights says what is wrong with it
    if held is None:
        return None
    try:
        schedule = Schedule.from_json(held)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schedule in {path}: {error}") from None
    return schedule if schedule.stages else None
