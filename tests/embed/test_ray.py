"""The same command on a real Ray, started and stopped here: the same rows, whoever is killed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm

import zerotprune as ztp
from tests.nursery import nursery
from tests.waiting import wait_until

pytest.importorskip("pyarrow")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'zerotprune[ray]'")
from tests.embed.runs import MAIN, arguments, assert_same, embed, make_images, rows_in
from tests.embed.test_kills import COUNT, MANY, kill_again_and_again

#: fewer actors than decoders: Ray would put as many of both into the same processes
RAY = ("--engine", "ray", "--actors", "1", "--workers", "2")
ACTOR = "ray::MapWorker(Map(RowEmbedder))"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("ray") / "images", COUNT if MANY else 12)


@pytest.fixture(scope="module")
def whole(images: Path) -> Path:
    out = images.parent / "whole"
    embed(images, out)
    return out


def test_an_actor_is_lost_and_no_row_is(images: Path, whole: Path, tmp_path: Path) -> None:
    born, out = nursery(), tmp_path / "out"
    started = born.start(MAIN, *arguments(images, out, *RAY))

    def actors() -> list[int]:
        assert born.lives(started), f"ended before an actor was seen: {born.wait(started)}"
        return actors_of(started)

    os.kill(wait_until(actors, "an actor", 0.02)[0], signal.SIGKILL)
    done = born.wait(started)
    assert done.returncode == 0, done.stderr
    assert_same(out, whole)
    wait_until(lambda: not of_session(started), "the end of Ray", 0.1)


@pytest.mark.skipif(not MANY, reason="takes ten minutes: make kills")
def test_a_killed_run_goes_on(images: Path, whole: Path, tmp_path: Path) -> None:
    """Write a shard for each image, since all are finished within a second of Ray's start."""
    kill_again_and_again(images, whole, tmp_path, MANY, *RAY, "--images", "1", longest=15)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a cluster with another working directory and a token of its own; yield its address."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    short = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with short as place:  # it has sockets, whose paths must be short
        words = ["start", "--head", "--block", f"--port={port}", "--num-cpus=4",
                 f"--temp-dir={place}", "--disable-usage-stats",
                 "--include-dashboard=false"]  # fmt: skip
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words], cwd=place,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
        )  # fmt: skip
        try:
            wait_until(lambda: _listens(port), "the head of the cluster", 0.1)
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
            wait_until(lambda: not _in_group(head.pid), "the end of the cluster", 0.1)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


#: the command, and what the documentation says about Ray Data, as one driver
DRIVER = """
import sys, os, torch
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": os.path.abspath("token")}
torch.set_num_threads(1)
sys.argv[0] = "zerotprune"
from zerotprune.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended
import numpy as np, ray.data, zerotprune as ztp
from pathlib import Path
files = sorted(Path("images").iterdir())
rows = ray.data.from_items([{"name": file.name, "bytes": file.read_bytes()} for file in files])
options = {"device": "cpu", "vectors": "float16"}
rows = rows.map_batches(ztp.Embedder, fn_constructor_args=(os.path.abspath("my-vit"),),
                        fn_constructor_kwargs=options, batch_size=3, concurrency=1, num_cpus=1)
np.savez("rows.npz", **{row["name"]: row["vector"] for row in rows.take_all()})
"""


@pytest.mark.skipif(not MANY, reason="starts a cluster, which takes a minute: make kills")
def test_a_running_cluster_finds_relative_paths(cluster: str, tmp_path: Path) -> None:
    """Data, a saved model and the file of its method, all named from another folder."""
    make_images(tmp_path / "images", 7)
    saved = ztp.prune_(timm.create_model("test_vit", depth=3).eval(), cost=0.7)
    ztp.save(saved, tmp_path / "my-vit")
    (tmp_path / "cluster_method.py").write_text(
        "from zerotprune.methods import ToMe\n\nclass Mine(ToMe):\n    pass\n"
    )
    words = ("embed", "my-vit", "images", "--out", "out", "--engine", "ray", "--address", cluster,
             "--cost", "0.6", "--method", "cluster_method.py:Mine", "--batch", "4")  # fmt: skip
    done = nursery().run(DRIVER, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows, files = rows_in(tmp_path / "out"), sorted((tmp_path / "images").iterdir())
    one = ztp.Embedder(saved, device="cpu")
    mapped = np.load(tmp_path / "rows.npz")
    vectors, errors = one.embed(files)
    tome = ztp.Embedder(tmp_path / "my-vit", cost=0.6, method="tome", device="cpu")
    by_method = tome.embed(files).vectors
    for at, file in enumerate(files):
        vector = rows[file.name][0]
        assert (vector is None) == (errors[at] is not None)
        np.testing.assert_allclose(mapped[file.name], vectors[at], atol=1e-3)
        if vector is not None:
            np.testing.assert_allclose(vector, by_method[at], atol=1e-5)


def actors_of(driver: int) -> list[int]:
    return [number for number in of_session(driver) if ACTOR in command_of(number)]


def of_session(driver: int) -> list[int]:
    """Return the processes that a driver's Ray has started: all its descendants."""
    parents = {number: parent_of(number) for number in numbers()}

    def descends(number: int) -> bool:
        while number in parents and number > 1:
            number = parents[number]
            if number == driver:
                return True
        return False

    return [number for number in parents if descends(number)]


def numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def parent_of(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
