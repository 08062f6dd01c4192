"""Export: a pruned model as a file for a runtime, compared with torch and timed there."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .target import Target

#: every target, with how its files end
ENDINGS = {"onnx": ".onnx", "openvino": ".xml", "executorch": ".pte", "torch": ".pt2"}
#: … and its module and class
_CLASSES = {
    "onnx": ("onnx", "Onnx"),
    "openvino": ("openvino", "OpenVino"),
    "executorch": ("pytorch", "ExecuTorch"),
    "torch": ("pytorch", "Torch"),
}


@cache
def target_named(name: str) -> Target:
    """Return the target of that name; ValueError if there is none."""
    if name not in ENDINGS:
        raise ValueError(f"unknown target {name!r}: the targets are {', '.join(ENDINGS)}")
    module, kind = _CLASSES[name]
    target: Target = getattr(import_module(f".{module}", __name__), kind)()
    return target


def target_of(file: str) -> Target | None:
    """Return the target that writes such files, by how the name ends."""
    return next((target_named(name) for name, end in ENDINGS.items() if file.endswith(end)), None)
