"""Weights files: read and check untrusted ones, write ours with their schedule."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..backbones import backbone, transformer
from ..backbones.storing import check_state
from ..method import UnnamedMethod
from ..safety.files import replacing
from ..saving import make_room
from ..schedule import Schedule

ENDING = ".safetensors"
_SCHEDULE, _ABOUT = "zerotprune.schedule", "zerotprune.about"


def load_weights(model: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load a state dict into the model; all keys and shapes must fit."""
    vit = backbone(model)
    make_room(vit, state)
    state = vit.under_own_names(state)
    if isinstance(model, nn.Sequential):  # a transformer, and a module that reads its output
        model = transformer(model)
    check_state(model, state, path)
    model.load_state_dict(state)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file, or a pickle of tensors alone."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on tensors that we refuse below
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the unpickler may fail in any way on a foreign file, and at length
        raise ValueError(
            f"{path} cannot be loaded as plain tensors, and nothing else is unpickled: "
            "give safetensors, or a state dict saved by torch.save"
        ) from None
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and torch.is_tensor(value) for key, value in state.items()
    ):
        raise ValueError(f"{path} is not a state dict: expected tensors by name")
    if state and all(key.startswith("module.") for key in state):  # it was trained in parallel
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def weights_hash(model: nn.Module) -> str:
    """Hash the weights in memory, wherever they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(transformer(model).state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_name(out: Path) -> None:
    """Refuse a name that does not end in .safetensors, by which --weights knows the format."""
    if out.suffix != ENDING:
        raise ValueError(f"--out must end in {ENDING}, got {out}")


def save(out: Path, model: nn.Module, schedule: Schedule, about: Mapping[str, Any]) -> None:
    """Write the model's weights with their schedule and `about`, whole or not at all."""
    from safetensors.torch import save as serialize

    inner = transformer(model) if isinstance(model, nn.Sequential) else model
    state = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in inner.state_dict().items()
    }
    metadata = {_SCHEDULE: schedule.to_json(), _ABOUT: json.dumps(dict(about))}
    data = serialize(state, metadata)  # in memory first: then a full disk gives a clear error
    try:
        with replacing(out) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise OSError(f"{out} cannot be written: {error.strerror or error}") from None


def schedule_in(path: Path, method: object = None) -> Schedule | None:
    """Return the schedule that a file of weights was trained for.

    Args:
        path: The file.
        method: As for `Schedule.from_json`.

    Returns:
        None for any other file, and for weights of an unpruned model.
    """
    if path.suffix != ENDING or not path.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_SCHEDULE)
    except SafetensorError:
        return None  # the error comes when the weights are read
    if text is None:
        return None
    try:
        schedule = Schedule.from_json(text, method)
    except UnnamedMethod:
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schedule in {path}: {error}") from None
    return schedule if schedule.stages else None
