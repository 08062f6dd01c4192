"""DeiT-Ti with its real weights on real images: every static method in every runtime.

`make test` takes one method in ONNX Runtime and in OpenVINO, with its first stage alone in the
first six blocks; `test_matrix.py` and `test_executorch.py` have tiny models. `make exports` takes
every method in every runtime, whole, and prints what came out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import zerotprune as ztp
from tests.nursery import run_script
from tests.test_real_weights import real_images, real_model
from zerotprune.export import ENDINGS
from zerotprune.methods import resolve

FOLDING = (ztp.Stage(4, similar=61), ztp.Stage(8, similar=40))
DROPPING = (ztp.Stage(4, keep=0.7), ztp.Stage(8, keep=0.7))
BOTH = (ztp.Stage(4, 0.85, 30), ztp.Stage(8, 0.85, 20))
METHODS = {
    "fold": FOLDING, "zero-tprune": BOTH, "tome": FOLDING, "diffrate-even": BOTH, "evit": DROPPING,
    "average-attention": DROPPING,
}  # fmt: skip
IMAGES = os.environ.get("ZEROTPRUNE_EXPORTS")
#: a runtime and methods, each a process; Fold in ONNX Runtime is in `test_exporting.py`
FEW = (("onnx", ("zero-tprune",)), ("openvino", ("diffrate-even",)))
ALL = tuple((name, (method,)) for name in ("onnx", "openvino", "executorch") for method in METHODS)


def tell() -> None:
    """Print how far the methods of the last arguments are from torch, as JSON."""
    shared, folder, target, count, *methods = sys.argv[1:]
    model = real_model(Path(shared), "deit_tiny_patch16_224").requires_grad_(False)
    images = real_images(Path(shared), model, int(count))
    torch.set_num_threads(1)
    few = IMAGES is None
    if few:
        model.blocks = model.blocks[:6]
    for method in methods:
        stages = METHODS[method][: 1 if few else None]
        ztp.prune_(model, ztp.Schedule(stages, resolve(method)))
        path = Path(folder, f"{method}{ENDINGS[target]}")
        report = ztp.export_model(model, path, to=target, images=images, rounds=0, threads=1)
        agreement = report.agreement
        print(
            json.dumps(
                [method, agreement.images, agreement.largest, agreement.typical, agreement.same]
            )
        )


@pytest.mark.parametrize(("target", "methods"), FEW if IMAGES is None else ALL)
def test_deit_answers_as_in_torch(
    target: str, methods: tuple[str, ...], shared: Path, tmp_path: Path
) -> None:
    script = "from tests.export.test_real_weights import tell; tell()"
    count = IMAGES or "3"
    lines = run_script(script, str(shared), str(tmp_path), target, count, *methods)
    assert len(lines) == len(methods)
    for line in lines:
        method, images, largest, typical, same = json.loads(line)
        print(f"\n{method} in {target}: {same * images:.0f} of {images} answers, {largest:.1e}")
        assert images == int(count)
        assert same == 1
        assert largest < 1e-3
        assert 0 < typical < 1e-5
