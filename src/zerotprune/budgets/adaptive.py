"""The cost of methods that keep different numbers of tokens for different images: measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..cost import Compute, Convention
from ..grid import Outputs
from ..plan import Plan
from ..schedule import Schedule
from ..surgery import attach, restore_
from ..tracing import survivors


@torch.inference_mode()
def measured_gmacs(
    model: nn.Module,
    schedule: Schedule,
    images: Tensor,
    convention: Convention = "full",
    outputs: Outputs = "tokens",
) -> float:
    """The mean cost over images. The model is unpruned afterwards."""
    attach(model, schedule)
    try:
        with survivors(model) as calls:
            model(images)
    finally:
        restore_(model)
    return mean_gmacs(Plan(schedule, backbone(model).geometry, outputs), calls, convention)


def mean_gmacs(
    plan: Plan,
    calls: list[list[Tensor]],
    convention: Convention = "full",
    compute: Compute = "all",
) -> float:
    """The mean cost of images of which `survivors` has noted what each stage left."""
    images = [row for call in calls for row in torch.stack(call, dim=1).tolist()]
    costs = {tuple(row): plan.gmacs(convention, row, compute) for row in images}
    return sum(costs[tuple(row)] for row in images) / len(images)
