"""torch.compile and torch.export take the pruned model as one graph.

In a process of its own: the run-time type checks of the other tests would break the graph.
"""

from __future__ import annotations

import pytest

from tests.nursery import run_script
from tests.thorough import THOROUGH

SCRIPT = """
import sys
import torch, zerotprune as ztp
from tests.families import SMALL, build, images_for
from zerotprune.methods import AViT, DynamicViT, TopK

from tests.thorough import THOROUGH

how = sys.argv[1]
two = ztp.Schedule((ztp.Stage(1, 1.0, 4, 1), ztp.Stage(2, 0.8, 4, 2)))
one = ztp.Schedule((ztp.Stage(1, 0.8, 4, 1),))
late = ztp.Schedule((ztp.Stage(2, 0.8, 4, 1),))  # after a block of the library's own
compiled_cases = [
    ("deit", two.by(ztp.ZeroTPrune())),
    ("eva-02, rotary", late),
    ("siglip, no cls", one),
    ("parallel things", one),
]
exported_cases = [
    ("deit", two.by(ztp.ZeroTPrune(order="i-s", partition="random"))),
    ("beit, relative bias", one),
    ("eva-02, post-norm", one),
]
cases = compiled_cases if how == "compile" else exported_cases
if THOROUGH:
    cases = compiled_cases + exported_cases
if how == "export":  # compiled are the methods in tests/methods/test_rivals.py, all of them
    cases += [
        ("deit", two.by(DynamicViT())),
        ("deit", two.by(AViT(gamma=2, beta=-1))),
    ]
    if THOROUGH:
        cases += [("deit", two.by(TopK("accumulated"))), ("deit", one.by(TopK("random")))]
for family, schedule in cases:
    SMALL["depth"] = schedule.stages[-1].block + 1
    model = build(family)
    images = images_for(model, 3)
    ztp.prune_(model, schedule)
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
            actual = compiled(images)
            compiled(others)
        assert len(graphs) == 1, (family, len(graphs))
        torch._dynamo.reset()
    else:
        with torch.no_grad():
            expected = model(images)
            exported = torch.export.export(model, (images,))
            assert list(exported.graph_signature.user_inputs) == ["x"]
            actual = exported.module()(images)
    torch.testing.assert_close(actual, expected)
    print("same:", family, schedule.method)
"""


@pytest.mark.parametrize(
    ("how", "cases"),
    [("compile", 7), ("export", 11)] if THOROUGH else [("compile", 4), ("export", 5)],
)
def test_one_graph(how: str, cases: int) -> None:
    """A family of blocks is compiled or exported; `make test-thorough` does both."""
    assert len(run_script(SCRIPT, how)) == cases
