"""Compiled equals eager on a GPU, in processes without run-time type checks: compilers cannot
trace those."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.nursery import ROOT
from tests.scoring.test_triton import on_a_gpu

SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/src"]
import timm, torch
from zerotprune import Schedule, Stage, methods, prune_
method, side = methods.resolve(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
model = timm.create_model("deit_tiny_patch16_224", depth=4, img_size=side)
model = model.eval().requires_grad_(False).cuda()
images = torch.randn(8, 3, side, side, device="cuda")
stages = (Stage(1, similar=20), Stage(2, similar=10))
if not method.merges:
    stages = (Stage(1, similar=6), Stage(2, 0.8, 6, rounds=5), Stage(3, 0.7))
prune_(model, Schedule(stages, method), backend="triton")
compiled = torch.compile(model, fullgraph=True, dynamic=False)
with torch.inference_mode():
    torch.testing.assert_close(compiled(images), model(images), atol=1e-3, rtol=1e-3)
"""


@on_a_gpu
@pytest.mark.parametrize("side", [112, 224, 384])
@pytest.mark.parametrize("method", ["fold", "tome", "zero-tprune"])
def test_compiled_is_as_eager(method: str, side: int) -> None:
    """Use few tokens, as many as a kernel holds at a time, and more."""
    script = SCRIPT.format(root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", script, method, str(side)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
