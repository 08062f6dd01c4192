"""A disk that is full: one sentence, and nothing half-written."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

import zerotprune as ztp
from tests.export.matrix import converting_once, tiny
from tests.nursery import run_script
from zerotprune.export import ENDINGS
from zerotprune.export.openvino import _save

ROOM = 50_000  # bytes that a file may have; the model needs more


def tell() -> None:
    """Print the errors when files cannot grow, in a separate process."""
    folder, errors = Path(sys.argv[1]), {}
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with converting_once():
        for to in ("onnx", "openvino", "torch"):
            try:
                ztp.export_model(tiny(2), folder / f"model{ENDINGS[to]}", to=to, rounds=0)
            except OSError as error:
                errors[to] = str(error)
    import openvino
    from openvino import opset13

    images = opset13.parameter([1, 200], np.float32)
    weights = opset13.constant(np.ones((200, 200), np.float32))
    model = openvino.Model([opset13.matmul(images, weights, False, False)], [images])
    try:
        _save(model, folder / "own.xml", {})
    except OSError as error:
        errors["OpenVINO's own writer"] = str(error)
    for file in folder.glob("own.*"):
        file.unlink()
    print(json.dumps(errors))


def test_one_sentence_and_no_file(tmp_path: Path) -> None:
    script = "from tests.export.test_full_disk import tell; tell()"
    errors = json.loads(run_script(script, str(tmp_path))[-1])
    assert errors.keys() == {"onnx", "openvino", "torch", "OpenVINO's own writer"}
    for to in ("onnx", "openvino", "torch"):
        assert errors[to].endswith(f"model{ENDINGS[to]} cannot be written: File too large")
    assert errors["OpenVINO's own writer"].endswith("is the disk full?")
    assert list(tmp_path.iterdir()) == []
