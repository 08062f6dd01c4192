"""Both halves of an engine without Ray: errors that are sent, reads that may succeed later."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import zerotprune as ztp
from tests.embed.runs import make_images
from zerotprune.embed import shards
from zerotprune.embed.engines import (
    Collector,
    RowEmbedder,
    Tally,
    _decode_row,
    found_anywhere,
    run_here,
)
from zerotprune.embed.shards import Piece, find_shards
from zerotprune.embed.writing import VectorFolder
from zerotprune.safety.files import bytes_of


class Fails:
    """A model, a transform or an embedder that fails as it is told."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *given: Any) -> Any:
        raise self.error

    build = stream = __call__


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE,
                                    errno.ENFILE, errno.ENOTCONN])  # fmt: skip
def test_a_read_that_may_succeed_later_fails_its_shard_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    images = make_images(tmp_path / "images", 8)
    (images / "00.png").unlink()  # and a broken link stays a row with an error
    (images / "00.png").symlink_to("nowhere")
    read = bytes_of

    def flaky(path: Path, *place: int) -> bytes:
        if path.name == "06.png":
            raise OSError(number, os.strerror(number))
        return read(path, *place)

    embedder = ztp.Embedder("demo", device="cpu", batch_size=2)
    found, out = find_shards(str(images), images=4), tmp_path / "out"
    out.mkdir()
    folder = VectorFolder(out, {}, "npy")

    def run() -> Collector:
        pending = [
            (at, shard) for at, shard in enumerate(found) if not folder.is_finished(shard.name)
        ]
        tally = Tally(sum(shard.weight for _, shard in pending))
        collector = Collector(folder, found, embedder, tally, lambda tally: None)
        run_here(embedder, pending, collector, workers=0)
        return collector

    monkeypatch.setattr(shards, "bytes_of", flaky)
    (why,) = run().failures.items()
    assert why[0] == "images-00001"
    assert os.strerror(number) in why[1]
    assert "06.png" in why[1]
    assert [file.name for file in out.iterdir()] == ["images-00000.npy"]
    monkeypatch.setattr(shards, "bytes_of", read)
    later = run()
    assert later.failures == {}
    assert (later.tally.images, later.tally.unreadable) == (4, 1)
    assert len(list(out.iterdir())) == 2


def test_files_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-vit").mkdir()
    (tmp_path / "my-vit" / "zerotprune.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    sent = found_anywhere(ztp.Embedder("my-vit", method="own.py:Own"))
    assert (sent.model, sent.method) == (tmp_path / "my-vit", f"{tmp_path}/own.py:Own")
    assert found_anywhere(ztp.Embedder("hf:my-vit")).model == f"hf:{tmp_path}/my-vit"
    named = found_anywhere(ztp.Embedder("test_vit", weights="w.safetensors", cost=0.7))
    assert (named.model, named.weights) == ("test_vit", tmp_path / "w.safetensors")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), ValueError("bad value")])
def test_errors_travel_as_rows_with_their_types(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raised(row: dict[str, Any]) -> Exception:
        came = pickle.loads(row["rows"])
        assert type(came) is type(error)
        assert str(came) == str(error)
        return came

    good = {"head": pickle.dumps((Piece(0, 0, 1), (1,), [None])), "images": b"1234"}
    unbuilt = RowEmbedder(pickle.dumps(Fails(error)), (), torch.get_num_threads())
    raised(unbuilt(good))
    built = RowEmbedder(
        pickle.dumps(ztp.Embedder("demo", device="cpu")), (), torch.get_num_threads()
    )
    bad = _decode_row({"piece": pickle.dumps(Piece(0, 0, 1))}, Fails(error))  # type: ignore[arg-type]
    raised(built(bad))
    monkeypatch.setattr(built.embedder, "stream", Fails(error))
    raised(built(good))
