"""Models by the names they have on the command line, with local weights if wanted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from ..backbones import backbone, create, transformer
from . import demo

DEMO = "demo"


def load(
    name: str, *, weights: Path | None = None, pretrained: bool = False, size: int | None = None
) -> nn.Module:
    """`demo` for the built-in model, else a name of a library's; in eval mode.

    Weights come from a file, or with `pretrained` from where the library has them; else they are
    random. `size` is the side of the images, if not the model's own: positions are resampled.
    """
    wanted = pretrained and weights is None
    model = demo.model() if name == DEMO else create(name, wanted)
    if weights is not None:
        read_weights(model, weights)
    if size is not None:
        backbone(model).resize_(size)
    return model.eval()


def outline(name: str) -> nn.Module:
    """The same model without its weights: enough for its geometry, at once, at any size."""
    with torch.device("meta"):
        return demo.untrained() if name == DEMO else create(name, pretrained=False)


def read_weights(model: nn.Module, path: Path) -> None:
    """Load a safetensors file, or a pickle of tensors alone; all keys and shapes must fit."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    state = backbone(model).under_own_names(_read(path))
    model = transformer(model)
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


def weights_hash(model: nn.Module) -> str:
    """Of what the model holds in memory, so that it does not matter where that came from."""
    digest = hashlib.sha256()
    for name, value in sorted(transformer(model).state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
