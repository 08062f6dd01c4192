"""torchvision, open_clip and LV-ViT compiled and exported as one graph, and counted by fvcore.

All in one process of its own: run-time type checks would break the graph, and fvcore traces, where
shapes are no integers.
"""

from __future__ import annotations

import pytest

from tests.nursery import run_script
from tests.thorough import THOROUGH

SCRIPT = """
import logging, warnings
warnings.simplefilter("ignore")
import torch
import zerotprune as ztp
from fvcore.nn import FlopCountAnalysis
from tests import libraries
from tests.libraries import build, images_for
from tests.thorough import THOROUGH

cases = [
    ("compile", "torchvision", "fold"), ("export", "torchvision", "zero-tprune"),
    ("export", "open_clip", "fold"), ("compile", "open_clip, mean", "tome"),
    ("export", "open_clip, attention pool", "tome"), ("compile", "lvvit", "fold"),
]
if THOROUGH:
    cases += [
        ("compile", "open_clip", "fold"), ("export", "open_clip, mean", "fold"),
        ("compile", "open_clip, attention pool", "fold"), ("export", "lvvit", "tome"),
    ]
for how, name, method in cases:
    # torchvision: a block of its own, one with a stage, and the last; the others: these two
    stage_at = 2 if name == "torchvision" else 1
    libraries.DEPTH = stage_at + 1
    model = build(name)
    images, others = images_for(model, 3), images_for(model, 3)
    stage = ztp.Stage(stage_at, 0.9 if method == "zero-tprune" else 1.0, 9, 2)
    ztp.prune_(model, ztp.Schedule((stage,)).by(method))
    with torch.no_grad():
        expected = model(images), model(others)
        if how == "compile":
            graphs = []
            def backend(graph, inputs):
                graphs.append(graph)
                return graph.forward
            run = torch.compile(model, fullgraph=True, backend=backend)
        else:
            run = torch.export.export(model, (images,)).module()
        torch.testing.assert_close((run(images), run(others)), expected)
    assert how == "export" or len(graphs) == 1, (name, len(graphs))
    torch._dynamo.reset()
    print("same:", how, name)


def attention(inputs, outputs):
    "Fused attention, which fvcore does not know: q with k, and what comes of it with v."
    q, k, v = (value.type().sizes() for value in inputs[:3])
    return q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


logging.disable()
libraries.DEPTH = 3
torch.backends.mha.set_fastpath_enabled(False)
for name in ("torchvision", "open_clip, own attention, scales", "open_clip, mean, then norm",
             "open_clip, attention pool", "lvvit"):
    stages = (ztp.Stage(1, 1.0, 4, 2), ztp.Stage(2, 0.8, 4, 3))
    for schedule in (ztp.Schedule(), ztp.Schedule(stages)):
        model = ztp.prune_(build(name), schedule, compute="all")
        stem = next(path for path, _ in model.named_children() if path in
                    ("conv_proj", "conv1", "patch_embed"))
        analysis = FlopCountAnalysis(model, images_for(model, 1))
        analysis.set_op_handle("aten::scaled_dot_product_attention", attention)
        counted = analysis.total() - analysis.by_module()[stem]
        closed = round(ztp.gmacs(model, convention="paper") * 1e9)
        print("counted:" if counted == closed else f"fvcore {counted}, ours {closed}:", name)
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return run_script(SCRIPT)


@pytest.mark.parametrize("how", ["compile", "export"])
def test_one_graph(how: str, printed: list[str]) -> None:
    assert len([line for line in printed if line.startswith(f"same: {how}")]) == (
        5 if THOROUGH else 3
    )


def test_paper_convention_equals_fvcore_without_patch_embedding(printed: list[str]) -> None:
    lines = [line for line in printed if not line.startswith("same")]
    assert len(lines) == 10
    assert all(line.startswith("counted:") for line in lines), lines
