"""Weights and configs in a folder: what the libraries share.

Weights are safetensors. Before a model is written, a twin is created from its config and compared
with it: nothing is written that would not give the same model back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..safety.files import parse_json, text_of

CONFIG, WEIGHTS = "config.json", "model.safetensors"
#: the submodule for what methods have learned, unknown to the libraries
LEARNED = "zerotprune"

#: attributes that do not affect the output of a model in eval mode
_HARMLESS = {
    "training", "p", "drop_prob", "drop_rate", "dropout", "attention_dropout", "scale_by_keep",
    "grad_checkpointing", "fused_attn", "num_classes", "default_cfg", "inplace", "is_init",
    "representation_size", "output_dict",
}  # fmt: skip
#: modules that do nothing in eval mode
_IDLE = {"Identity", "Dropout", "DropPath", "StochasticDepth"}


#: what initializes weights in place: on the meta device it does nothing, and takes most of the time
_INITIALIZERS = {
    getattr(Tensor, name)
    for name in ("add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_")
}


class _Uninitialized(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _INITIALIZERS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Create modules on the meta device: they have no weights, and none are initialized."""
    with torch.device("meta"), _Uninitialized():
        yield


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's weights without what methods have learned."""
    state: dict[str, Tensor] = model.state_dict()
    return {name: value for name, value in state.items() if LEARNED not in name.split(".")[:-1]}


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write plain tensors as safetensors."""
    from safetensors.torch import save_file

    for name, value in state.items():
        if value.is_meta or value.layout != torch.strided or type(value.data) is not Tensor:
            raise ValueError(
                f"cannot save {name}: it is not a plain tensor, but {_kind(value)}; save the model "
                "before it is quantized, sharded or offloaded"
            )
    # Copy: safetensors refuses tensors that share memory.
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    save_file(copies, path, {"format": "pt"})


def _kind(value: Tensor) -> str:
    if value.is_meta:
        return "a meta tensor"
    return f"a {type(value.data).__name__} of layout {value.layout}"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read safetensors, and nothing else: pickles are never opened."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no {path.name}: weights are read from safetensors only"
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load weights into the model, which takes on their precision."""
    check_state(model, state, path)
    kinds = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(kinds) == 1:
        model.to(dtype=kinds.pop())  # also what is not in the file
    # Copy: a tensor in the file may be misaligned, and would be multiplied by another kernel.
    model.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    model.requires_grad_(True)


def check_state(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not finite dense tensors of the model's names and shapes."""
    expected = model.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        if name not in state:
            raise ValueError(f"the weights in {path} lack {name}")
        if name not in expected:
            raise ValueError(f"the weights in {path} have {name}, which the model does not have")
        value = state[name]
        if expected[name].shape != value.shape:
            raise ValueError(
                f"the weights in {path}: expected {name} of shape {tuple(expected[name].shape)}, "
                f"got {tuple(value.shape)}"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise ValueError(f"the weights in {path}: {name} is not a plain dense tensor")
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"the weights in {path}: {name} has values that are not finite")


def write_by_arguments(
    model: nn.Module,
    kind: Callable[..., nn.Module],
    args: Mapping[str, Any],
    folder: Path,
    **more: str,
) -> None:
    """Write a model whose library has no config format: its class, its arguments, its weights.

    Args:
        model: The model.
        kind: Its class.
        args: The arguments of the class. They must give the same model.
        folder: The folder to write to.
        more: Further entries of the config.
    """
    with on_meta():
        twin = kind(**args)
    if differs := difference(model, twin):
        raise ValueError(
            f"cannot infer the arguments of this {kind.__name__}: with {dict(args)} {differs}; "
            "give config={…}"
        )
    write_config(folder / CONFIG, {"class": kind.__name__, "args": dict(args), **more})
    write_weights(folder / WEIGHTS, own_state(model))


def read_by_arguments(
    folder: Path, kind: Callable[..., nn.Module], weights: bool
) -> tuple[nn.Module, dict[str, Any]]:
    """Create the model that `write_by_arguments` wrote, and return it with its config."""
    config = read_config(folder / CONFIG)
    args = config.get("args")
    if config.get("class") != kind.__name__ or not isinstance(args, dict):
        raise ValueError(f"{folder / CONFIG} is not the config of a {kind.__name__}")
    try:
        model = kind(**args)
    except Exception as error:  # the arguments are untrusted and can raise anything
        raise ValueError(
            f"cannot create the {kind.__name__} of {folder / CONFIG}: {error}"
        ) from None
    if weights:
        fill(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return model, config


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object from a folder that is not trusted."""
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}")
    try:
        data = parse_json(text_of(path, "config"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a JSON object")
    return data


def difference(model: nn.Module, twin: nn.Module) -> str:
    """Say where two models differ in their weights' shapes, modules or settings; "" if nowhere."""
    state, other = own_state(model), own_state(twin)
    for name in sorted(state.keys() ^ other.keys()):
        return f"only one of them has {name}"
    for name, value in state.items():
        if value.shape != other[name].shape:
            return f"{name} is {tuple(value.shape)} and {tuple(other[name].shape)}"
    modules, others = dict(_modules(model)), dict(_modules(twin))
    for name in sorted(modules.keys() ^ others.keys()):
        return f"only one of them has the module {name}"
    for name, module in modules.items():
        kind, other_kind = type(module).__name__, type(others[name]).__name__
        if kind != other_kind:
            return f"{name or 'the model'} is a {kind} and a {other_kind}"
        settings, other_settings = _settings(module), _settings(others[name])
        for setting in sorted(settings.keys() & other_settings.keys()):
            if settings[setting] != other_settings[setting]:
                where = f"{name}.{setting}" if name else setting
                return f"{where} is {settings[setting]!r} and {other_settings[setting]!r}"
    return ""


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that do something in eval mode, by name."""
    for name, module in model.named_modules():
        if type(module).__name__ not in _IDLE and LEARNED not in name.split("."):
            yield name, module


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: _plain(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _HARMLESS and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value
