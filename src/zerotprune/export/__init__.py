"""Export: a pruned model as a file for a runtime, held to the torch model and timed there."""

from __future__ import annotations

from importlib import import_module

from .target import Target

#: every target, each a module of this package, with how the files that it writes end
ENDINGS = {"onnx": ".onnx", "openvino": ".xml", "executorch": ".pte", "torch": ".pt2"}


def target_named(name: str) -> Target:
    """The target of that name; what it needs is imported when it is used."""
    if name not in ENDINGS:
        raise ValueError(f"unknown target {name!r}: the targets are {', '.join(ENDINGS)}")
    found: Target = import_module(f".{name}", __name__).TARGET
    return found


def target_of(file: str) -> Target | None:
    """The target that writes such files, by how the name ends."""
    return next((target_named(name) for name, end in ENDINGS.items() if file.endswith(end)), None)
