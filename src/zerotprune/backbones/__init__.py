"""Backbones: one interface to the Vision Transformers of all libraries, and their blocks in parts.

A library is imported only for one of its models, or when a model is created by name."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from torch import Tensor, nn

from ..safety.ranges import check_choice
from .contract import Backbone, BlockCall, Pool, Reading

__all__ = [
    "LIBRARIES",
    "Backbone",
    "BlockCall",
    "Pool",
    "Reading",
    "backbone",
    "create",
    "featurize_",
    "image_tower",
    "library_of",
    "own_weights",
    "read_folder",
    "reading",
    "refuse_unreachable",
    "shape_in",
    "transformer",
    "unwrap",
    "wrapper_of",
    "write_folder",
]


class Library(NamedTuple):
    """Where a library's models are defined, and the prefix of their names on the command line."""

    module: str
    prefix: str = ""
    ours: str | None = None  # a module here that defines some of them


#: the libraries, by the names of our packages
LIBRARIES: dict[str, Library] = {
    "timm": Library("timm"),
    "torchvision": Library("torchvision", "torchvision:"),
    "open_clip": Library("open_clip", "open_clip:"),
    "lvvit": Library("tlt", "lvvit:", f"{__package__}.lvvit.model"),
    "transformers": Library("transformers", "hf:"),
}


def backbone(model: object) -> Backbone:
    """Take a model apart, or raise TypeError with the reason why it cannot be pruned."""
    model = transformer(model)
    if (wrapper := wrapper_of(model)) is not None:
        raise TypeError(f"cannot prune a model after {wrapper}: prune it first")
    home = _home_of(model)
    if home is None:
        raise TypeError(f"cannot prune {type(model).__name__}: {_advice(model)}")
    vit: Backbone = home.take_apart(model)
    return vit


def reading(model: object) -> Reading:
    """Return what a vision-language model reads of its tower, or raise TypeError if unknown."""
    model = unwrap(model)
    read = getattr(_home_of(model), "reading", None)
    if read is None:
        raise TypeError(f"{type(model).__name__} is not a supported vision-language model")
    result: Reading = read(model)
    return result


def featurize_(model: object, pool: Pool = "own") -> nn.Module:
    """Change a model in place to return one vector for an image.

    Prune what this returns: then a mean over patches counts merged tokens by their size.

    Args:
        model: A model of any library, unpruned.
        pool: "own" for what the library's head reads, or returns if it has no classifier; "cls" for
            the CLS token; "mean" for the mean over the patches.
    """
    check_choice("pool", pool, get_args(Pool))
    model = unwrap(model)
    if type(model) is nn.Sequential:
        supported = [child for child in model if _home_of(child) is not None]
        model = supported[0] if len(supported) == 1 else model
    change = getattr(_home_of(model), "featurize_", None)
    if change is None:
        backbone(model)  # raises if the model cannot be pruned at all
        raise TypeError(f"{type(model).__name__} cannot be made to return one vector for an image")
    featurized: nn.Module = change(model, pool)
    return featurized


def unwrap(model: object) -> nn.Module:
    """Return the model inside `DistributedDataParallel`, `DataParallel` or `torch.compile`."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def transformer(model: object) -> nn.Module:
    """Return the Vision Transformer itself: without wrappers, out of an `nn.Sequential` with one
    supported model, or out of a larger model of the same library."""
    model = unwrap(model)
    if type(model) is nn.Sequential:
        supported = [child for child in model if _home_of(child) is not None]
        if len(supported) == 1:
            return transformer(supported[0])
    tower = getattr(_home_of(model), "tower", None)
    inner = model if tower is None else tower(model)
    return model if inner is model else transformer(inner)


#: classes that wrap a model or change its classes → what made them
_WRAPPERS = {
    "PeftModel": "get_peft_model",
    "FSDPModule": "fully_shard",
    "FullyShardedDataParallel": "FullyShardedDataParallel, or accelerator.prepare,",
    "DeepSpeedEngine": "deepspeed.initialize, or accelerator.prepare,",
}


def wrapper_of(model: nn.Module) -> str | None:
    """Name what wrapped the model or a part of it, if `unwrap` does not know it."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                return _WRAPPERS[kind.__name__]
    return None


def create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """Create a model by its name on the command line.

    Args:
        name: The prefix of the library, then its name of the model.
        pretrained: Load the library's pretrained weights.
        options: Of the library's `create`; None leaves the default.
    """
    home, library_name = _split_name(name)
    kwargs = {option: value for option, value in options.items() if value is not None}
    unknown = sorted(kwargs.keys() - inspect.signature(home.create).parameters.keys())
    if unknown:
        raise ValueError(f"{name} has no --{unknown[0]} option")
    model: nn.Module = home.create(library_name, pretrained, **kwargs)
    return model


def shape_in(name: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of `create` that fit these weights, as far as they can be inferred."""
    read = getattr(_split_name(name)[0], "shape_in", None)
    return {} if read is None else dict(read(state))


def own_weights(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the model's weights from a file that may have other towers too."""
    select = getattr(_split_name(name)[0], "own_weights", None)
    return dict(state if select is None else select(state))


def library_of(model: nn.Module) -> str:
    """Return the name of our package for the library of the model."""
    home = _home_of(model)
    if home is None:
        raise TypeError(f"cannot save {type(model).__name__}: {_advice(model)}")
    return home.__name__.rpartition(".")[2]


def write_folder(model: nn.Module, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write a model's config and weights in the format of its library.

    Args:
        model: The model, without wrappers.
        folder: An empty folder.
        config: What the library needs to create the model, if it cannot be read off the model.
    """
    _package(library_of(model)).write(model, folder, config)


def read_folder(library: str, folder: Path, weights: bool = True) -> nn.Module:
    """Create the model of a folder. Only data is read, and no code is run.

    Args:
        library: The name of our package for its library.
        folder: What `write_folder` wrote.
        weights: Load its weights; else they are random.
    """
    model: nn.Module = _package(library).read(folder, weights)
    return model


def image_tower(model: nn.Module) -> nn.Module:
    """Return the image tower of a model, or the model itself if it has no text tower."""
    select = getattr(_home_of(model), "image_tower", None)
    tower: nn.Module = model if select is None else select(model)
    return tower


def refuse_unreachable(
    name: str,
    repository: str,
    files: Sequence[str],
    instead: str = "give a local file with --weights",
) -> None:
    """Raise ValueError if a repository is not cached and the Hugging Face Hub cannot be reached.
    The Hub's client would retry for a minute."""
    from huggingface_hub import constants, try_to_load_from_cache

    if any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        return
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        return  # it answers
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLError):
            return  # it answers, and the Hub's client has other certificates
        host = urlsplit(constants.ENDPOINT).hostname
        raise ValueError(
            f"cannot fetch the pretrained weights of {name}: {host} cannot be reached; {instead}"
        ) from None


def _home_of(model: nn.Module) -> ModuleType | None:
    """Return our package for the library that defines the model's class, or a base of it."""
    for kind in type(model).__mro__:
        defined_in = kind.__module__.partition(".")[0]
        for home, library in LIBRARIES.items():
            if defined_in == library.module or kind.__module__ == library.ours:
                return _package(home)
    return None


def _split_name(name: str) -> tuple[ModuleType, str]:
    """Split a name on the command line into our package for its library and the library's name."""
    prefix, colon, library_name = name.rpartition(":")
    for home, library in LIBRARIES.items():
        if library.prefix == prefix + colon:
            return _package(home), library_name
    prefixes = ", ".join(library.prefix for library in LIBRARIES.values() if library.prefix)
    raise ValueError(
        f"unknown model {name!r}: give 'demo' or the name of a timm model, or one with a prefix "
        f"({prefixes})"
    )


def _package(home: str) -> ModuleType:
    return import_module(f".{home}", __package__)


def _advice(model: nn.Module) -> str:
    inside = [f"a {home} {type(part).__name__} at .{path}" for path, home, part in _prunable(model)]
    if inside:
        path = inside[0].rpartition(" at ")[2]
        return f"it contains {' and '.join(inside)}: pass model{path}"
    library = type(model).__module__.partition(".")[0]
    return f"it is from {library}, not a Vision Transformer of {' or '.join(LIBRARIES)}"


def _prunable(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Find submodules that could be pruned by themselves, with the names of their libraries."""
    for path, module in model.named_modules():
        home = _home_of(module)
        if path and home is not None:
            try:
                home.take_apart(module)
            except (TypeError, AttributeError):
                continue
            yield path, home.__name__.rpartition(".")[2], module
