"""Whatever is typed ends in time, in one sentence at most, and harms no file.

`make fuzz` draws as many command lines as one likes, others every time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.cli import hostile
from tests.commands import describe, quickly

MANY = int(os.environ.get("ZEROTPRUNE_FUZZ", "0"))
DRAWS = MANY or 200

NUMBERS = ("0", "1", "2", "-1", "0.5", "1e-5", "1e309", "nan", "inf", "-inf", "7", "13", "100000",
           "999999999999999999999", "a", "", "0x10", "１", "1_0")  # fmt: skip
FEW = tuple(number for number in NUMBERS if number != "100000")  # of what takes its time
POOLS = ("token", "avg", "map", "", "x")
MODELS = ("demo", "test_vit", "resnet18", "swin_tiny_patch4_window7_224", "nothing", "", "[/b]",
          "../demo", "hf:", "a:b:c", "\udcff", "demo.x")  # fmt: skip
METHODS = ("fold", "tome", "slicing", "ats", "tomee", "", "binary", "good.json:X", "nowhere.py:X",
           "loop.py:X", "folder.py:X")  # fmt: skip
DEVICES = ("cpu", "meta", "mps", "xla", "cuda:99", "cpu:7", "", "gpu", "auto")
WORDS = ("float32", "float16", "bfloat16", "int8", "", "knn", "eager")
#: what each option is given; options that are not here exist as well, and get a word
VALUES = {
    **dict.fromkeys(
        ("size", "cost", "gmacs", "limit", "panels", "batch", "threads", "finalists", "cache-gb",
         "seed", "threshold", "evaluations", "port", "latency-ms", "speedup", "lr", "new-lr",
         "mixup", "cutmix", "ema", "classes", "weight-decay", "label-smoothing", "token-weight",
         "logit-weight"), NUMBERS),
    **dict.fromkeys(("rounds", "trials", "images", "epochs", "samples"), FEW),
    "workers": ("0", "-1", "100000", "a"), "weights": hostile.WEIGHTS, "model": MODELS,
    "schedule": hostile.SCHEDULES, "calibration": hostile.SCHEDULES, "method": METHODS,
    "names": hostile.SCHEDULES, "mapping": hostile.SCHEDULES, "device": DEVICES,
    "to": ("onnx", "openvino", "executorch", "torch", "tflite", ""), "pool": POOLS,
    "data": hostile.DATA, "train": hostile.DATA, "teacher": (*hostile.WEIGHTS, "demo", "test_vit"),
    "storage": (*hostile.OUTPUTS, "postgresql://", "sqlite:///", "a://b"),
    **dict.fromkeys(("out", "csv", "plot", "figure", "plots", "figures"), hostile.OUTPUTS),
}  # fmt: skip
SHARED = ("weights", "size", "device", "classes", "pool", "random-weights")
READING = ("limit", "batch", "workers", "mapping", "split", "strict")
BUDGET = ("cost", "gmacs", "schedule", "tuned")
#: for each command: what it begins with, its options, and what keeps it short
COMMANDS = {
    "info": (("FILE",), (*SHARED, *BUDGET, "method", "calibration", "batch"), ()),
    "show": (("IMAGE",), (*SHARED, *BUDGET, "method", "names", "limit", "panels", "out", "lines",
                         "grid", "heads"),
             ("--model", "demo", "--limit", "1")),
    "evaluate": (("MODEL", "DATA"), (*SHARED, *READING, *BUDGET, "method", "precision", "csv",
                                     "calibration", "probe", "train", "json", "no-speed"),
                 ("--workers", "0", "--limit", "1", "--batch", "1")),
    "compare": (("MODEL", "DATA"), (*SHARED, *READING, "cost", "speedup", "method", "csv",
                                    "plots"),
                ("--workers", "0", "--limit", "1", "--method", "slicing")),
    "calibrate": (("MODEL", "DATA"), (*SHARED, *READING, "out", "figures", "threshold", "schedule",
                                      "evaluations", "seed"),
                  ("--workers", "0", "--limit", "1", "--evaluations", "1")),
    "search": (("MODEL", "DATA"), (*SHARED, "limit", "batch", "mapping", "cost", "gmacs", "method",
                                   "out", "trials", "storage", "figure", "csv", "seed",
                                   "calibration", "workers", "cache-gb"),
               ("--limit", "2", "--trials", "1")),
    "bench": (("MODEL",), (*SHARED, "cost", "schedule", "method", "batch", "precision", "mode",
                           "threads", "csv", "plot"),
              ("--mode", "eager", "--batch", "1", "--rounds", "1")),
    "finetune": (("MODEL", "DATA", "DATA"), (*SHARED, *BUDGET, "method", "out", "epochs", "lr",
                                             "mixup", "ema", "teacher", "batch", "precision",
                                             "frozen", "new-lr", "cutmix", "weight-decay",
                                             "label-smoothing", "token-weight", "logit-weight",
                                             "seed", "strict"),
                 ("--workers", "0", "--limit", "2", "--batch", "2", "--epochs", "1", "--cost",
                  "0.5", "--out", "new.safetensors")),
    "drift": (("MODEL", "DATA"), ("weights", "size", "device", *READING, "cost", "method", "plots",
                                  "precision", "json"),
              ("--workers", "0", "--limit", "1", "--method", "slicing")),
    "export": (("MODEL",), (*SHARED, *BUDGET, "method", "to", "out", "batch", "samples", "threads",
                            "data", "limit", "int8"),
               ("--to", "torch", "--samples", "0", "--out", "new.pt2")),
    "demo": ((), ("out", "csv"), ("--images", "1")),
    "app": ((), ("model", "weights", "names"), ()),
}  # fmt: skip
#: mistakes that keep a command from its work; the page would never end
LAST = {
    "info": (), "show": (), "evaluate": (), "compare": ("--cost", "2"),
    "drift": ("--cost", "2"),
    "calibrate": ("--threshold", "nan"), "search": ("--finalists", "0"),
    "finetune": ("--cost", "0.001"), "bench": ("--threads", "0"),
    "export": ("--data", "images", "--limit", "1", "--batch", "2"),
    "demo": ("--images", "0"),
    "app": ("--port", "0"),
}  # fmt: skip
FLAGS = ("strict", "tuned", "lines", "grid", "heads", "json", "int8", "random-weights", "frozen",
         "no-speed")  # fmt: skip
LONG = ("bench", "export", "demo")
PLACES = {
    "MODEL": MODELS,
    "FILE": MODELS + hostile.EXPORTED,
    "DATA": hostile.DATA,
    "IMAGE": hostile.IMAGES,
}
FOREIGN = ("Traceback", "Errno", "has no attribute", "not supported between", "codec can't",
           "surrogates", "data point", "NoneType", "unexpected keyword", "RuntimeError",
           "this is a bug")  # fmt: skip


@st.composite
def calls(draw: st.DrawFn, command: str) -> list[str]:
    places, options, short = COMMANDS[command]
    # What is right most of the time comes first: else every call would end at its first word.
    words = [draw(st.sampled_from((PLACES[place][0],) * 8 + PLACES[place])) for place in places]
    for option in draw(st.lists(st.sampled_from(options), max_size=3, unique=True)):
        words.append(f"--{option}")
        if option not in FLAGS:
            words.append(draw(st.sampled_from(VALUES.get(option, WORDS))))
    used = {word for word in words if word.startswith("--")}
    # Most of the long ones are kept from work by a mistake of their own: 300 draws are to be quick.
    # `test_valid_calls` has those that work.
    if draw(st.integers(0, 3)) or command == "app" or (command in LONG and not MANY):
        short = LAST[command] + short
    for option, value in zip(short[::2], short[1::2], strict=True):
        if option not in used:
            words += [option, value]
            used.add(option)
    if draw(st.integers(0, 19)) == 0:
        odd = draw(st.sampled_from(("--", "--x", "-", "")))
        words.insert(draw(st.integers(0, len(words))), odd)
    return [command, *words]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.make(tmp_path_factory.mktemp("hostile"))


def snapshot(home: Path) -> dict[str, tuple[int, int, int]]:
    """Return every file's inode, size and time of change; follow folders that link to themselves
    once."""
    files = {}
    for root, folders, names in os.walk(home):
        for name in [*folders, *names]:
            about = os.lstat(os.path.join(root, name))  # noqa: PTH118  names may be no text
            files[f"{root}/{name}"] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return {
        name: value
        for name, value in files.items()
        if not os.path.isdir(name)  # noqa: PTH112
    }


@pytest.mark.parametrize("command", COMMANDS)
@settings(max_examples=DRAWS // len(COMMANDS) + 1, derandomize=not MANY, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(data=st.data())
def test_whatever_is_typed(command: str, data: st.DataObject, home: Path) -> None:
    words = data.draw(calls(command))
    before = snapshot(home)
    done = quickly(*words, cwd=home)
    event(f"{words[0]} {done.returncode}")
    about = describe(words, done)
    assert done.returncode in (0, 2), about
    assert not [phrase for phrase in FOREIGN if phrase in done.stderr], about
    if done.returncode == 2:
        assert 1 <= len(done.stderr.splitlines()) <= 3, about
        for name in snapshot(home).keys() - before.keys():
            if name.endswith(".checkpoint"):  # whole epochs of a training that then diverged
                Path(name).unlink()
        assert snapshot(home) == before, about
    else:
        for name in snapshot(home).keys() - before.keys():
            Path(name).unlink()
    assert not (home / "executed").exists(), about
