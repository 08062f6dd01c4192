"""Random valid calls of the largest commands: each does what it was asked to do.

`make fuzz` draws more of them, different ones every time; `test_fuzz` has invalid calls.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.app.serving import catches, fetched, free_port
from tests.cli import hostile
from tests.commands import MAIN, describe, quickly
from tests.nursery import Done, nursery
from tests.thorough import thorough
from tests.waiting import GUARD, wait_until
from zerotprune import Schedule, Stage
from zerotprune.methods import Fold

MANY = int(os.environ.get("ZEROTPRUNE_FUZZ", "0"))
#: how each kind of file begins
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
SMALL = ("test_vit", "--random-weights")
SCHEDULE = Schedule((Stage(2, similar=9), Stage(4, similar=6)), Fold())
STATIC = ("fold", "tome", "zero-tprune", "top-k", "evit")
ENDINGS = {"torch": "pt2", "onnx": "onnx", "openvino": "xml", "executorch": "pte"}
PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino",
            "executorch": "executorch"}  # fmt: skip
RUNTIMES = {"torch": "torch", "onnx": "ONNX Runtime", "openvino": "OpenVINO",
            "executorch": "ExecuTorch"}  # fmt: skip
#: the others take longer, and `tests/export` has them all
TARGETS = [
    name if MANY or name == "torch" else pytest.param(name, marks=thorough)
    for name in PACKAGES
    if find_spec(PACKAGES[name]) is not None
]

Run = Callable[[torch.Tensor], torch.Tensor]


def drawn(few: int, share: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Set the number of draws, or a share of those that `make fuzz` asks for. Failures are not
    shrunk: that would take longer than the test."""
    return settings(
        max_examples=max(few, int(MANY * share)), derandomize=not MANY, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def call(words: list[str], home: Path) -> Done:
    done = quickly(*words, cwd=home)
    assert done.returncode == 0, describe(words, done)
    assert "Traceback" not in done.stderr, describe(words, done)
    return done


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Make a new folder for each draw."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    hostile._images(place)
    return place / "images"


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def a_figure(path: Path) -> bool:
    return path.read_bytes().startswith(MAGIC[path.suffix])


figures = st.sampled_from(("new.png", "new.svg", "new.pdf"))


@drawn(2, 0.02)
@given(data=st.data())
def test_bench(data: st.DataObject, fresh: Callable[[], Path]) -> None:
    home = fresh()
    model = data.draw(st.sampled_from((("demo",), SMALL)))
    methods = data.draw(
        st.lists(st.sampled_from((*STATIC, "ats")), min_size=1, max_size=2, unique=True)
    )
    batches = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True))
    precisions = data.draw(
        st.lists(st.sampled_from(("float32", "bfloat16")), min_size=1, max_size=2, unique=True)
    )
    budget = data.draw(st.sampled_from(([], ["--cost", "0.7"], ["--schedule", "own.json"])))
    as_json, plot = data.draw(st.booleans()), data.draw(figures)
    SCHEDULE.save(home / "own.json")
    words = ["bench", *model, "--mode", "eager", "--rounds", "1", "--threads", "1", "--device",
             "cpu", "--method", *methods, "--batch", *map(str, batches), "--precision",
             *precisions, *budget, "--csv", "new.csv", "--plot", plot]  # fmt: skip
    done = call(words + ["--json"] * as_json, home)
    wanted = sorted(product(precisions, map(str, batches), ["unpruned", "slicing", *methods]))
    rows = rows_in(home / "new.csv")
    about = describe(words, done)
    assert sorted((row["precision"], row["batch"], row["name"]) for row in rows) == wanted, about
    assert {(row["model"], row["mode"], row["failure"]) for row in rows} == {
        (model[0], "eager", "")
    }, about
    assert all(float(row["images_per_second"]) > 0 for row in rows), about
    gmacs = {row["name"]: float(row["gmacs"]) for row in rows}
    assert all(gmacs[name] < gmacs["unpruned"] for name in ("slicing", *methods)), about
    if as_json:
        names = [row["name"] for row in json.loads(done.stdout)]
        assert names == [row["name"] for row in rows], about
    else:
        for name in (model[0], "unpruned", "slicing", *methods):
            assert name in done.stdout, about
    assert a_figure(home / plot), about
    assert {path.name for path in home.iterdir()} == {"own.json", "new.csv", plot}, about


@pytest.mark.parametrize("target", TARGETS)
@drawn(1, 0.005)
@given(data=st.data())
def test_export(target: str, data: st.DataObject, fresh: Callable[[], Path], images: Path) -> None:
    home, out = fresh(), f"new.{ENDINGS[target]}"
    method = data.draw(st.sampled_from(("fold", "tome", "top-k")))
    budget = data.draw(
        st.sampled_from((["--cost", "0.7", "--method", method], ["--schedule", "own.json"], []))
    )
    batch, timed = data.draw(st.integers(1, 3)), bool(MANY) and data.draw(st.booleans())
    shown = data.draw(st.sampled_from(([], ["--data", str(images), "--limit", "4"])))
    SCHEDULE.save(home / "own.json")
    words = ["export", *SMALL, "--to", target, "--out", out, *budget, "--batch", str(batch),
             "--samples", str(int(timed)), "--threads", "1", *shown]  # fmt: skip
    done = call(words, home)
    about = describe(words, done)
    assert f"test_vit in {RUNTIMES[target]}, batch {batch}" in done.stdout or not timed, about
    assert f"{out}: " in done.stdout, about
    assert {path.name for path in home.iterdir()} - {"own.json"} <= {
        out, f"{out}.json", f"{out}.data", "new.bin"
    }, about  # fmt: skip
    logits = LOADERS[target](str(home / out))(torch.zeros(batch, 3, 160, 160))
    assert logits.shape == (batch, 1000), about
    assert bool(logits.isfinite().all()), about
    output = call(["info", out], home).stdout
    assert "test_vit" in output, output
    assert f'"batch": {batch}, "shape": [3, 160, 160]' in output, output
    wanted = {"--cost": method, "--schedule": "fold"}.get(budget[0]) if budget else None
    assert (f'"name": "{wanted}"' in output) == (wanted is not None), output


def _torch(path: str) -> Run:
    run: Run = torch.export.load(path).module()
    return run


def _onnx(path: str) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def _openvino(path: str) -> Run:
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU")
    return lambda images: torch.from_numpy(compiled(images.numpy())[0])


def _executorch(path: str) -> Run:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda images: torch.as_tensor(method.execute([images])[0])


#: each runtime as its own documentation calls it
LOADERS: dict[str, Callable[[str], Run]] = {
    "torch": _torch, "onnx": _onnx, "openvino": _openvino, "executorch": _executorch
}  # fmt: skip


@drawn(1, 0.005)
@given(data=st.data())
def test_demo(data: st.DataObject, fresh: Callable[[], Path]) -> None:
    home = fresh()
    count, out = data.draw(st.integers(8, 12)), data.draw(figures)
    words = ["demo", "--images", str(count), "--out", out, "--csv", "new.csv"]
    # ATS meets a budget on a whole batch of images: one of six will do.
    code = f"import zerotprune.cli.demo as demo; demo.BATCH, demo.SCENES = 6, 1; {MAIN}"
    done = nursery().run(code, *words, cwd=home, strict=True, limit=GUARD)
    about = describe(words, done)
    assert done.returncode == 0, about
    assert f"{count} unseen images" in done.stdout, about
    for name in ("unpruned", "fold", "zero-tprune", "tome", "ats", "random", out):
        assert name in done.stdout, about
    _, _, at_equal_speed = done.stdout.partition("At equal speed")
    for name in ("1.2×", "1.5×", "fold", "zero-tprune", "tome", "ats", "random"):
        assert name in at_equal_speed, about
    rows = rows_in(home / "new.csv")
    assert len(rows) == 16, about
    assert float(rows[0]["top1"]) > 80, about
    assert all(float(row["gmacs"]) < float(rows[0]["gmacs"]) for row in rows[1:]), about
    assert {row["images"] for row in rows} == {str(count)}, about
    assert a_figure(home / out), about
    assert {path.name for path in home.iterdir()} == {"new.csv", out}, about


@pytest.mark.skipif(find_spec("gradio") is None, reason="no gradio")
@drawn(1, 0.01)
@given(data=st.data())
def test_app(data: st.DataObject, fresh: Callable[[], Path]) -> None:
    """Start the app, fetch its page, and end it as a terminal or a system does."""
    home, temporary, port = fresh(), fresh(), free_port()
    models = data.draw(st.sampled_from(([], ["--model", *SMALL])))
    names = data.draw(st.sampled_from(([], ["--names", "names.txt"])))
    blow = data.draw(st.sampled_from((signal.SIGTERM, signal.SIGINT)))
    (home / "names.txt").write_text("one\ntwo\n")
    words = ["app", "--no-browser", "--port", str(port), *models, *names]
    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}; {MAIN}"
    child = nursery().start(code, *words, cwd=home)
    try:
        page = fetched(port, child)
        wait_until(lambda: catches(child, signal.SIGTERM), "the server to wait for its end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, blow)
        done = nursery().wait(child)
    about = describe(words, done)
    assert page is not None, about
    assert "Vision Transformer" in page, about
    assert ("test_vit" in page) == bool(models), about
    assert done.returncode == 0, about
    assert f"http://127.0.0.1:{port}" in done.stdout, about
    assert "Traceback" not in done.stderr, about
    assert [path.name for path in temporary.iterdir() if path.name.startswith("zerotprune")] == []
