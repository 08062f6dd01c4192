"""Models by the names they have on the command line, with local weights if wanted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from ..backbones import backbone, create, own_weights, shape_in, transformer
from . import demo

DEMO = "demo"


def load(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    size: int | None = None,
    classes: int | None = None,
    pool: str | None = None,
) -> nn.Module:
    """`demo` for the built-in model, else a name of a library's; in eval mode.

    Weights come from a file, or with `pretrained` from where the library has them; else they are
    random. `size` is the side of the images, if not the model's own: positions are resampled.
    `classes` and `pool` are the head's, if not the library's own; the number of classes is read
    from the file.
    """
    if name == DEMO:
        _refuse_options(classes=classes, pool=pool)
        model, state = demo.model(), None if weights is None else _read(weights)
    elif weights is None:
        model, state = create(name, pretrained, classes=classes, pool=pool), None
    else:
        state = own_weights(name, _read(weights))
        options = shape_in(name, state) | ({} if classes is None else {"classes": classes})
        model = create(name, False, **options, pool=pool)
    if weights is not None and state is not None:
        _fill(model, state, weights)
    if size is not None:
        backbone(model).resize_(size)
    return model.eval()


def outline(name: str, *, classes: int | None = None, pool: str | None = None) -> nn.Module:
    """The same model without its weights: enough for its geometry, at once, at any size."""
    if name == DEMO:
        _refuse_options(classes=classes, pool=pool)
    with torch.device("meta"):
        if name == DEMO:
            return demo.untrained()
        return create(name, pretrained=False, classes=classes, pool=pool)


def _refuse_options(**options: object) -> None:
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"--{option} is not for the built-in model: leave it out")


def _fill(model: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """All keys and shapes must fit."""
    state = backbone(model).under_own_names(state)
    if isinstance(model, nn.Sequential):  # a transformer, and what is read of its answer
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
    """A safetensors file, or a pickle of tensors alone."""
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
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler may fail in any way on a foreign file
        first = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a file of tensors alone: {first}") from None
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(torch.is_tensor(v) for v in state.values()):
        raise ValueError(f"{path} holds no state dict")
    if state and all(key.startswith("module.") for key in state):  # it was trained in parallel
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def weights_hash(model: nn.Module) -> str:
    """Of what the model holds in memory, so that it does not matter where that came from."""
    digest = hashlib.sha256()
    for name, value in sorted(transformer(model).state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
