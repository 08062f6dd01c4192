"""torch.compile and torch.export take the pruned model as one graph.

In a process of its own: the run-time type checks of the other tests would break the graph.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch, zerotprune as ztp
from tests.families import build, images_for
from zerotprune.methods import AViT, DynamicViT, TopK

how = sys.argv[1]
cases = [
    ("deit", ztp.ZeroTPrune()),
    ("deit", ztp.ZeroTPrune(order="i-s", partition="random")),
    ("deit", TopK("accumulated")),
    ("deit", TopK("random")),
    ("deit", DynamicViT()),
    ("deit", AViT(gamma=2, beta=-1)),
    ("eva-02, rotary", ztp.ZeroTPrune()),
    ("beit, relative bias", ztp.ZeroTPrune()),
    ("siglip, no cls", ztp.ZeroTPrune()),
    ("parallel things", ztp.ZeroTPrune()),
    ("eva-02, post-norm", ztp.ZeroTPrune()),
]
schedule = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4, 3), ztp.Stage(4, 0.5)))
for family, method in cases:
    model = build(family)
    images = images_for(model, 3)
    ztp.prune_(model, schedule.by(method))
    assert ("forward" in model.__dict__) == (model.global_pool == "token")
    if how == "compile":
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward
        others = torch.randn_like(images)
        with torch.inference_mode():
            expected = model(images)
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            found = compiled(images)
            compiled(others)
        assert len(graphs) == 1, (family, len(graphs))
        torch._dynamo.reset()
    else:
        with torch.no_grad():
            expected = model(images)
            exported = torch.export.export(model, (images,))
            assert list(exported.graph_signature.user_inputs) == ["x"]
            found = exported.module()(images)
    torch.testing.assert_close(found, expected)
    print("same:", family, method)
"""


@pytest.mark.parametrize("how", ["compile", "export"])
def test_one_graph(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("same:") == 11
