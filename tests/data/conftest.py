"""Folders of images that several tests read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.files import BLUE, GREEN, RED, encoded, put, write_tar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "val"
    put(root / "n02" / "a.PNG", BLUE)
    put(root / "n01" / "b.png", GREEN)
    put(root / "n01" / "a.png", RED)
    put(root / "n10" / "deeper" / "c.png", RED)
    return root


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for at, color in enumerate((RED, GREEN, BLUE)):
        members = [
            ("meta.json", b"{}"),
            ("x/k.cls", str(at).encode() + b"\n"),  # parts come in any order
            ("x/k.PNG", encoded(color)),
            ("x/k.json", b'{"label": 99}'),  # .cls goes before it
            ("l.jpeg", encoded((9, 9, 9), "JPEG")),
            ("l.seg.png", b"another part of the sample"),
            ("l.json", json.dumps({"label": 5 + at}).encode()),
        ]
        write_tar(tmp_path / "wds" / f"val-{at:06d}.tar", members)
    return tmp_path / "wds"
