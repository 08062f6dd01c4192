"""A folder of hostile files, and some good ones, as inputs for the command line."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zlib
from pathlib import Path

import onnx
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.data.files import write_tar
from zerotprune import Schedule, Stage
from zerotprune.data import demo

DEEP = "[" * 200_000
SCHEDULES = ("good.json", "deep.json", "nan.json", "half.json", "rounds.json", "loop", "fifo",
             "folder", "binary", "empty", "nowhere", "/dev/zero", "ablation-is", "")  # fmt: skip
WEIGHTS = ("good.safetensors", "nan.safetensors", "sparse.pt", "malice.pt", "binary", "loop",
           "fifo", "folder", "nowhere", "empty", "other.safetensors", "list.pt")  # fmt: skip
DATA = ("images", "images/0", "bad", "tars", "tars/deep.tar", "tars/cut.tar", "tars/{0..9}.tar",
        "{0..99999999999}.tar", "*.tar", "folder", "empty", "binary", "nowhere", "fifo", "loop",
        "hf:folder", "hf:nowhere", "", "/dev/null", "[")  # fmt: skip
IMAGES = ("images/0/a.png", "bad/bomb.png", "bad/strip.png", "bad/eps.jpg", "bad/cut.png",
          "bad/fifo.png", "bad/round", "bad/\x1b[31m.png", "bad/\udcff.png", "bad", "images",
          "nowhere.png", "empty", "/dev/zero", "fifo", "loop")  # fmt: skip
OUTPUTS = ("new.png", "new.json", "new.svg", "new.csv", "new.onnx", "good.json",
           "good.safetensors", "loop", "fifo", "folder", "closed/new.png", "nowhere/new.json",
           "/dev/null", "/dev/full", "images/0/a.png", "other.csv", "nul.csv", "[/bold].png",
           "x" * 300 + ".png", "", "new.\udcff", "new.pt2", "pipe.pt2", "new.safetensors",
           "cut.safetensors", "pipe.safetensors", "\udcff.pt2", "x" * 250 + ".pt2")  # fmt: skip
#: what `info` may take for files that `export` wrote
EXPORTED = ("deep.onnx", "notes.onnx", "cut.onnx", "fifo.onnx", "folder.onnx", "deep.pte",
            "list.pte", "names.pte", "alone.pte", "pipe.pt2", "nowhere.xml")  # fmt: skip


def make(home: Path) -> Path:
    """Write all files; a call can only use those called good."""
    _images(home)
    _texts(home)
    _weights(home)
    _exported(home)
    for name in ("folder", "closed", "folder.onnx"):
        (home / name).mkdir()
    (home / "closed").chmod(0o555)
    for name in ("fifo", "fifo.onnx", "pipe.pt2.json", "pipe.safetensors.checkpoint"):
        os.mkfifo(home / name)
    (home / "loop").symlink_to("loop")
    return home


def _images(home: Path) -> None:
    pixels, _ = demo.images(10, seed=5)
    for number, image in enumerate(((pixels + 1) * 127.5).byte().permute(0, 2, 3, 1).numpy()):
        (home / "images" / str(number)).mkdir(parents=True)
        Image.fromarray(image).save(home / "images" / str(number) / "a.png")
    good, bad = (home / "images" / "0" / "a.png").read_bytes(), home / "bad"
    bad.mkdir()
    for name, data in {
        "cut.png": good[:100], "bomb.png": png(50_000, 50_000), "strip.png": png(60_000, 1),
        "eps.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n",
        "empty.png": b"", "\x1b[31m.png": good, "\udcff.png": good,
    }.items():  # fmt: skip
        (bad / name).write_bytes(data)
    os.mkfifo(bad / "fifo.png")
    (bad / "round").symlink_to(bad)
    (bad / "dangling.png").symlink_to("nowhere.png")
    (home / "tars").mkdir()
    write_tar(home / "tars" / "deep.tar", [("a.png", good), ("a.json", DEEP.encode())])
    whole = write_tar(home / "tars" / "0.tar", [("a.png", good), ("a.cls", b"3")]).read_bytes()
    (home / "tars" / "cut.tar").write_bytes(whole[:700])


def png(width: int, height: int) -> bytes:
    """Return a PNG that promises more than it holds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min((width + 1) * height, 100_000)))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def _texts(home: Path) -> None:
    Schedule((Stage(3, keep=0.7),)).save(home / "good.json")
    stage = {"block": 1, "keep": 0.5, "rounds": 10**9}
    for name, text in {
        "deep.json": DEEP, "half.json": '{"version": 2, "stag', "empty": "",
        "nan.json": '{"version": 1, "stages": [{"block": 1, "keep": NaN}]}',
        "rounds.json": json.dumps({"version": 1, "stages": [stage]}),
        "other.csv": "a,b\n1,2\n", "nul.csv": "a\0b\n", "names.txt": "one\ntwo\n",
    }.items():  # fmt: skip
        (home / name).write_text(text)
    (home / "binary").write_bytes(bytes(range(256)) * 4)


def _weights(home: Path) -> None:
    class Malice:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(home / "executed"),)

    state = demo.model().state_dict()
    name = next(iter(state))
    save_file(state, home / "good.safetensors")
    save_file({**state, name: state[name] * float("nan")}, home / "nan.safetensors")
    save_file({"a": torch.zeros(1)}, home / "other.safetensors")
    torch.save({**state, name: state[name].to_sparse()}, home / "sparse.pt")
    torch.save([state[name]], home / "list.pt")
    (home / "malice.pt").write_bytes(pickle.dumps(Malice()))


def _exported(home: Path) -> None:
    for name, notes in {
        "deep": {"zerotprune.schedule": DEEP},
        "notes": {"zerotprune.model": '"\\u001b[31m[/b]\\ud800"', "zerotprune.class_names": "[]"},
    }.items():
        model = onnx.helper.make_model(onnx.helper.make_graph([], "nothing", [], []))
        onnx.helper.set_model_props(model, notes)
        (home / f"{name}.onnx").write_bytes(model.SerializeToString())
    (home / "cut.onnx").write_bytes((home / "notes.onnx").read_bytes()[:-3])
    for name, text in {"deep": DEEP, "list": "[1]", "names": '{"class_names": [1]}'}.items():
        (home / f"{name}.pte").touch()
        (home / f"{name}.pte.json").write_text(text)
    (home / "alone.pte").touch()
    (home / "pipe.pt2").touch()
    (home / "cut.safetensors.checkpoint").write_bytes((home / "list.pt").read_bytes()[:300])
