"""The same command on a real Ray, started and stopped here: the same rows, whoever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.nursery import nursery
from tests.waiting import wait_until

pytest.importorskip("pyarrow")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'zerotprune[ray]'")
from tests.embed.runs import MAIN, arguments, assert_same, embed, make_images
from tests.embed.test_kills import COUNT, MANY, kill_again_and_again

#: fewer actors than decoders: Ray would put as many of both into the same processes
RAY = ("--engine", "ray", "--actors", "1", "--workers", "2")
ACTOR = "ray::MapWorker(Map(RowEmbedder))"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("ray") / "images", COUNT)


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
