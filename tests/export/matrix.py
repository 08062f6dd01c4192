"""Every static method in every runtime: `python -m tests.export.matrix TARGET` prints as JSON how
far each is from torch.

In a process of its own: the run-time type checks of the other tests would break the graph. All
methods stand side by side in one module, so that what an exporter takes for any model it takes once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import stirred
from zerotprune.export import target
from zerotprune.export.target import quiet
from zerotprune.methods import names, resolve
from zerotprune.scoring import ordering

SIDE = 64  # 16 patches
#: two stages, and at the second the order counts in which the first has left the tokens
STAGES = (ztp.Stage(1, similar=4), ztp.Stage(2, similar=3))
DROPPING = (ztp.Stage(1, keep=0.8), ztp.Stage(2, keep=0.7))
BOTH = (ztp.Stage(1, 0.9, 3), ztp.Stage(2, 0.8, 2, 2))
METHODS = {
    "fold": STAGES, "tome": STAGES, "tome-uni": STAGES, "zero-tprune": BOTH,
    "zero-tprune-uni": BOTH, "diffrate-even": BOTH, "evit": DROPPING, "cls-attention": DROPPING,
    "average-attention": DROPPING, "accumulated-attention": DROPPING, "random": DROPPING,
    "slicing": DROPPING,
}  # fmt: skip
#: of other geometry, or adaptive
LEFT_OUT = {"diffrate", "ats"}


class Side(nn.Module):
    """All methods on the same images; and the order of numbers of which many are equal."""

    def __init__(self) -> None:
        super().__init__()
        assert set(METHODS) | LEFT_OUT >= set(names()), names()
        torch.manual_seed(0)
        small = {"embed_dim": 16, "num_heads": 2, "depth": 3, "num_classes": 5, "img_size": SIDE}
        self.models = nn.ModuleList(
            ztp.prune_(
                stirred(timm.create_model("deit_tiny_patch16_224", **small)).eval(),
                ztp.Schedule(stages, resolve(name)),
            )
            for name, stages in METHODS.items()
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        answers = torch.stack([model(images) for model in self.models], dim=1)
        levels = images[:, 0, 0, :23].round()
        gone, stay = ordering.parted(levels, 7)
        best, place = ordering.largest(levels)
        found = (gone, stay, ordering.descending(levels), ordering.top(levels, 9), place[:, None])
        return answers, torch.cat(found, dim=1).to(best.dtype)


if __name__ == "__main__":
    import time
    name = sys.argv[1]
    side = Side().requires_grad_(False)
    images = torch.randn(2, 3, SIDE, SIDE)
    c=time.process_time()
    shapes = None if name == "executorch" else {0: torch.export.Dim("batch", min=1, max=64)}
    with quiet(), torch.no_grad():
        program = torch.export.export(side, (images,), dynamic_shapes=(shapes,))
    print("program",time.process_time()-c); c=time.process_time()
    where = target(name)
    path = Path(tempfile.mkdtemp(), f"model{where.ending}")
    where.write(program, path, {})
    print("write",time.process_time()-c); c=time.process_time()
