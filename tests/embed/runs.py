"""Runs of `zerotprune embed` on a few images, and what they left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

from tests.nursery import Done, nursery
from zerotprune.data import demo

#: with the same threads everywhere, vectors are the same to the last bits
MAIN = """
import sys, torch
torch.set_num_threads(1)
sys.argv[0] = "zerotprune"
from zerotprune.cli import main
main()
"""
BROKEN = "05.png"


def make_images(home: Path, count: int) -> Path:
    """Save digits of the built-in model, one of them broken."""
    from PIL import Image

    home.mkdir()
    shown, _ = demo.images(count, seed=4)
    for number, image in enumerate(((shown + 1) * 127.5).byte().permute(0, 2, 3, 1).numpy()):
        Image.fromarray(image).save(home / f"{number:02d}.png")
    (home / BROKEN).write_bytes(b"no image")
    return home


USUAL = {"--cost": "0.6", "--batch": "2", "--images": "4", "--workers": "0"}


def arguments(data: Path, out: Path, *more: str) -> tuple[str, ...]:
    """Return a call with these options and the usual ones for the rest."""
    present = {*more, "--cost"} if "--schedule" in more else {*more}
    if not list(data.glob("*.png")):
        present.add("--images")
    usual = [word for name in USUAL if name not in present for word in (name, USUAL[name])]
    return ("embed", "demo", str(data), "--out", str(out), *usual, *more)


def embed(data: Path, out: Path, *more: str) -> Done:
    done = nursery().run(MAIN, *arguments(data, out, *more))
    assert done.returncode == 0, done.stderr
    return done


def rows_in(out: Path) -> dict[str, tuple[np.ndarray | None, str | None]]:
    """Return vector and error by key; fail if a key is there twice."""
    rows: dict[str, tuple[np.ndarray | None, str | None]] = {}
    for file in sorted(out.glob("*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            assert row["key"] not in rows
            vector = None if row["vector"] is None else np.array(row["vector"], np.float32)
            rows[row["key"]] = vector, row["error"]
    return rows


def assert_same(out: Path, expected: Path) -> None:
    """Check that every row is there once, with its vector."""
    actual, wanted = rows_in(out), rows_in(expected)
    assert list(actual) == list(wanted)
    for key, (vector, error) in wanted.items():
        assert actual[key][1] == error
        embedding = actual[key][0]
        assert (embedding is None) == (vector is None)
        if embedding is not None and vector is not None:
            np.testing.assert_allclose(embedding, vector, atol=1e-6)
    assert not list(out.glob(".zerotprune-*"))
