"""What an exported file says of itself: schedule, method, preprocessing, class names, versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

from .. import __version__
from ..backbones import backbone
from ..methods import to_data
from ..plan import Plan
from ..schedule import Schedule
from ..surgery import current_plan
from .target import Target

BatchSize = int | Literal["dynamic"]  # images at a time


def facts_of(model: nn.Module, target: Target, batch: BatchSize, precision: str) -> dict[str, Any]:
    """Of the model as it is pruned now."""
    vit, plan = backbone(model), current_plan(model)
    schedule = plan.schedule if plan is not None else Schedule()
    geometry = vit.geometry
    return {
        "model": vit.name or type(vit.model).__name__,
        "schedule": json.loads(schedule.to_json()),
        "method": to_data(schedule.method) if schedule.stages else None,
        "gmacs": round((plan or Plan(schedule, geometry)).gmacs(), 6),
        "gmacs_unpruned": round(Plan(Schedule(), geometry).gmacs(), 6),
        "input": {"batch": batch, "shape": list(vit.input_shape)},
        "preprocessing": preprocessing(model),
        "class_names": vit.class_names(),
        "precision": precision,
        "runtime": target.runtime,
        "versions": {"zerotprune": __version__, **target.versions()},
    }


def preprocessing(model: nn.Module) -> dict[str, Any]:
    """What makes an image the model's input: scaled, cut out of the middle, values in [0, 1] less
    the mean, over the standard deviation. None where the model's own transform does not say."""
    vit = backbone(model)
    _, height, width = vit.input_shape
    mean, std = vit.normalization
    steps = list(_steps(vit.transform()))
    resize = next((each for each in steps if hasattr(each, "interpolation")), None)
    how = getattr(resize, "interpolation", None)
    scaled = getattr(resize, "size", None)
    return {
        "size": [height, width],
        "resize": scaled if scaled is None or isinstance(scaled, int) else list(scaled),
        "interpolation": None if how is None else str(getattr(how, "value", how)),
        "mean": list(map(float, mean)),
        "std": list(map(float, std)),
    }


def _steps(transform: Any) -> Iterator[Any]:
    """One by one, as far as they are listed."""
    yield from getattr(transform, "transforms", [transform])
