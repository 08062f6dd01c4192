"""Models by the names they have on the command line, with local weights if wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import demo


def load(
    name: str, *, weights: Path | None = None, pretrained: bool = False, size: int | None = None
) -> nn.Module:
    """`demo` for the built-in model, else a name of timm's; in eval mode.

    Weights come from a file, or with `pretrained` from where timm has them; else they are random.
    `size` is the side of the pictures, if not the model's own: positions are resampled to it.
    """
    model: Any = demo.model() if name == "demo" else _create(name, pretrained and weights is None)
    if weights is not None:
        read_weights(model, weights)
    if size is not None:
        if not hasattr(model, "set_input_size"):
            raise ValueError(f"{name} cannot be set to another picture size")
        model.set_input_size((size, size))
    found: nn.Module = model.eval()
    return found


def outline(name: str) -> nn.Module:
    """The same model without its weights: enough for its geometry, at once, at any size."""
    with torch.device("meta"):
        return demo.untrained() if name == "demo" else _create(name, pretrained=False)


def _create(name: str, pretrained: bool) -> nn.Module:
    import timm

    if ":" in name:
        raise ValueError(f"unknown model {name!r}: give 'demo' or the name of a timm model")
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"unknown model {name!r}: timm {timm.__version__} has none of that name")
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained)
    except RuntimeError as error:
        raise ValueError(f"timm cannot make {name!r}: {error}") from None
    return model


def read_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file, or a pickle of tensors alone; all keys and shapes must fit."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    state = _read(path)
    own = model.state_dict()
    for key in sorted(own.keys() | state.keys()):
        if key not in state:
            raise ValueError(f"the weights in {path} lack {key}")
        if key not in own:
            raise ValueError(f"the weights in {path} hold {key}, which the model does not have")
        if own[key].shape != state[key].shape:
            came, wanted = tuple(state[key].shape), tuple(own[key].shape)
            raise ValueError(f"the weights in {path}: {key} is {came}, the model wants {wanted}")
    model.load_state_dict(state)


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler may fail in any way on a foreign file
        first = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a file of tensors alone: {first}") from None
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(torch.is_tensor(v) for v in state.values()):
        raise ValueError(f"{path} holds no state dict")
    return state
