"""Models by the names they have on the command line, with local weights if wanted."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import torch
from torch import nn

from ..backbones import backbone, create, own_weights, shape_in, transformer
from ..learned import make_room
from ..ranges import check_range
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
        held = {} if state is None else shape_in(name, state)
        outputs = backbone(model).outputs
        if held.get("classes", outputs) != outputs:  # it was fine-tuned
            backbone(model).reset_head_(held["classes"])
    elif weights is None:
        if pretrained:  # what cannot be pruned is not worth the fetching
            backbone(outline(name, classes=classes, pool=pool))
        model, state = create(name, pretrained, classes=classes, pool=pool), None
    else:
        state = own_weights(name, _read(weights))
        options = shape_in(name, state) | ({} if classes is None else {"classes": classes})
        model = create(name, False, **options, pool=pool)
    if weights is not None and state is not None:
        _fill(model, state, weights)
    if size is not None:
        resize_(model, size)
    return model.eval()


def resize_(model: nn.Module, size: int) -> None:
    """Set the model to square images of so many pixels, if patches of its size fill them."""
    vit = backbone(model)
    check_range("size", size)
    for side, patches in zip(vit.input_shape[1:], vit.geometry.grid, strict=True):
        patch = side // patches
        if size % patch:
            below, over = size // patch * patch, (size // patch + 1) * patch
            nearest = f"{below} or {over}" if below else f"{over}"
            raise ValueError(
                f"size must be a multiple of {patch}, the side of a patch, got {size}: "
                f"try {nearest}"
            )
    vit.resize_(size)


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
    vit = backbone(model)
    make_room(vit.model, state, vit.geometry)
    state = vit.under_own_names(state)
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
        if state[key].layout != torch.strided or state[key].is_quantized or state[key].is_meta:
            raise ValueError(f"the weights in {path}: {key} is not a plain dense tensor")
        if state[key].is_floating_point() and not state[key].isfinite().all():
            raise ValueError(f"the weights in {path}: {key} holds values that are not finite")
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on tensors that we refuse below
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the unpickler may fail in any way on a foreign file, and at length
        raise ValueError(
            f"{path} is not a file of tensors alone, and nothing else is unpickled: "
            "give safetensors, or what torch.save makes of a state dict"
        ) from None
    for wrapper in ("model", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and torch.is_tensor(value) for key, value in state.items()
    ):
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
