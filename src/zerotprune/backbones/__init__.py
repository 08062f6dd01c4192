"""Backbones: all that anybody wants to know of a library's Vision Transformer, and how it comes
apart. A library is imported only when one of its models is at hand or is asked for by name."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .contract import Backbone, BlockCall
from .libraries import LIBRARIES, create, home_of, own_weights, shape_in
from .reading import Reading

__all__ = ["LIBRARIES", "Backbone", "BlockCall", "backbone", "create", "own_weights", "reading",
           "shape_in", "transformer", "unwrap"]  # fmt: skip


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `DistributedDataParallel`, `DataParallel` or `torch.compile`."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def transformer(model: nn.Module) -> nn.Module:
    """The Vision Transformer itself: without wrappers, and out of an `nn.Sequential` that has one,
    which calls it and does nothing else to it, or out of a model of its library's that holds it."""
    model = unwrap(model)
    if type(model) is nn.Sequential:
        supported = [child for child in model if home_of(child) is not None]
        if len(supported) == 1:
            return transformer(supported[0])
    # Some libraries' models hold the transformer inside.
    tower = getattr(home_of(model), "tower", None)
    inner = model if tower is None else tower(model)
    return model if inner is model else transformer(inner)


def backbone(model: object) -> Backbone:
    """Take a model apart, or say in one sentence why it cannot be pruned."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    model = transformer(model)
    home = home_of(model)
    if home is None:
        raise TypeError(f"cannot prune {type(model).__name__}: {_advice(model)}")
    vit: Backbone = home.take_apart(model)
    return vit


def reading(model: object) -> Reading:
    """What a vision-language model reads of its tower, or why that is not known."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    read = getattr(home_of(model), "reading", None)
    if read is None:
        raise TypeError(
            f"{type(model).__name__} is not a vision-language model that is known to the library"
        )
    found: Reading = read(model)
    return found


def _advice(model: nn.Module) -> str:
    held = [f"a {home} {type(each).__name__} at .{path}" for path, home, each in _prunable(model)]
    if held:
        path = held[0].rpartition(" at ")[2]
        return f"it holds {' and '.join(held)}: pass model{path}"
    library = type(model).__module__.partition(".")[0]
    return f"it is {library}'s, and not a Vision Transformer of {' or '.join(LIBRARIES)}"


def _prunable(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """The modules inside that could be pruned by themselves, each with its library's name."""
    for path, held in model.named_modules():
        home = home_of(held)
        if path and home is not None:
            try:
                home.take_apart(held)
            except (TypeError, AttributeError):
                continue
            yield path, home.__name__.rpartition(".")[2], held
