"""Killed at random moments and started again, a run leaves every row once.

`make kills` kills as often as you like; here it is a few times.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.nursery import nursery

pytest.importorskip("pyarrow")
from tests.embed.runs import MAIN, arguments, assert_same, embed, make_images

MANY = int(os.environ.get("ZEROTPRUNE_KILLS", "0"))
COUNT = 24  # six shards


@pytest.mark.parametrize("workers", ["0", "2"])
def test_killed_at_any_moment_a_run_ends_exact(tmp_path: Path, workers: str) -> None:
    images = make_images(tmp_path / "images", COUNT)
    whole = tmp_path / "whole"
    embed(images, whole)
    kill_again_and_again(images, whole, tmp_path, MANY or 4, "--workers", workers)


def kill_again_and_again(
    images: Path, whole: Path, home: Path, kills: int, *more: str, longest: float = 0.4
) -> None:
    """Kill runs `kills` times, some within `longest` seconds of their start and some just after a
    shard or two. Let the last run in each folder finish, and go on in a new one."""
    rng, born, killed = random.Random(kills), nursery(), 0
    while killed < kills:
        out = home / f"out{killed}"
        while killed < kills:
            started = born.start(MAIN, *arguments(images, out, *more))
            new = rng.randrange(3)
            wanted = len(list(out.glob("*.parquet"))) + new
            while born.lives(started) and len(list(out.glob("*.parquet"))) < wanted:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1 if new else longest))
            if not born.lives(started):
                done = born.wait(started)
                assert done.returncode == 0, done.stderr
                break
            os.kill(started, signal.SIGKILL)
            born.wait(started)
            killed += 1
        embed(images, out, *more)
        assert_same(out, whole)
