"""Private folders: gone afterwards; those of killed processes are cleared by the next."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.nursery import nursery
from tests.waiting import wait_until
from zerotprune.safety.files import private_folder

HOLD = """
import sys, tempfile, time
from pathlib import Path
tempfile.tempdir = sys.argv[1]
from zerotprune.safety.files import private_folder
with private_folder() as folder:
    Path(folder, "images.pt").touch()
    time.sleep(3600)
"""


def test_what_a_killed_process_left_is_cleared_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = nursery()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "zerotprune-of-somebody-else").mkdir()
    child = forks.start(HOLD, str(tmp_path))
    files = wait_until(lambda: list(tmp_path.glob("zerotprune-*/images.pt")), "its folder")
    with private_folder() as folder, private_folder() as another:
        assert files[0].exists()
        assert folder != another
        (folder / "x").touch()
        os.kill(child, signal.SIGKILL)
        forks.wait()
        assert files[0].exists()
        with private_folder():
            assert not files[0].parent.exists()
            assert (folder / "x").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["zerotprune-of-somebody-else"]
