"""The files of a model take their places together: old and new never lie side by side."""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import run_script
from zerotprune.export.exporting import _place

NAMES = ("model.bin", "model.xml")  # the one that is opened is the last
#: operations on files; whichever comes, the process may end before it
STEPS = ("rename", "replace", "unlink")


def laid(home: Path, text: str) -> list[Path]:
    home.mkdir(exist_ok=True)
    files = [home / name for name in NAMES]
    for file in files:
        file.write_text(text)
    return files


def left(home: Path) -> set[str] | None:
    """Return the contents of the model's files; None for one that cannot be opened."""
    if not (home / NAMES[-1]).exists():
        return None
    return {(home / name).read_text() for name in NAMES}


def stopping(monkeypatch: pytest.MonkeyPatch, after: int, stop: Any) -> None:
    """Stop before the step of that number; let the clean-up after it run."""
    count = [0]

    def step(real: Any, *args: Any, **more: Any) -> Any:
        count[0] += 1
        if count[0] == after + 1:
            stop()
        return real(*args, **more)

    for name in STEPS:
        monkeypatch.setattr(os, name, partial(step, getattr(os, name)))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("old", [True, False])
def test_ctrl_c_leaves_the_old_or_the_new(old: bool, tmp_path: Path) -> None:
    outcomes = []
    for after in range(30):
        home = tmp_path / str(after)
        if old:
            laid(home, "old")
        home.mkdir(exist_ok=True)
        new = laid(home / "new", "new")
        with pytest.MonkeyPatch.context() as patch:
            stopping(patch, after, interrupt)
            try:
                _place(new, home / NAMES[-1], home / "new")
                whole = True
            except KeyboardInterrupt:
                whole = False
        outcomes.append(whole)
        assert left(home) in ([{"new"}] if whole else [{"new"}, {"old"} if old else None])
        names = {file.name for file in home.iterdir() if file.is_file()}
        assert names == (set(NAMES) if left(home) else set())  # and nothing beside them
    assert outcomes[-1]
    assert outcomes.count(False) > 3


def kill() -> None:
    """Place a new model beside an old one and die at some step, in a separate process."""
    home, after = Path(sys.argv[1]), int(sys.argv[2])
    laid(home, "old")
    new = laid(home / "new", "new")
    if os.fork() == 0:
        stopping(pytest.MonkeyPatch(), after, lambda: os._exit(0))
        _place(new, home / NAMES[-1], home / "new")
        os._exit(0)
    os.wait()
    print(sorted(left(home) or []))


def test_a_kill_leaves_one_model_or_none(tmp_path: Path) -> None:
    outcomes = []
    for after in range(12):
        script = "from tests.export.test_placing import kill; kill()"
        outcomes.append(run_script(script, str(tmp_path / str(after)), str(after))[-1])
    assert set(outcomes) == {"['old']", "[]", "['new']"}
    assert outcomes[0] == "['old']"
    assert outcomes[-1] == "['new']"


def test_modes_and_links_stay(tmp_path: Path) -> None:
    laid(tmp_path / "real", "old")
    (tmp_path / "real" / "model.bin").chmod(0o600)
    (tmp_path / "link").mkdir()
    for name in NAMES:
        (tmp_path / "link" / name).symlink_to(f"../real/{name}")
    _place(laid(tmp_path / "new", "new"), tmp_path / "link" / NAMES[-1], tmp_path / "new")
    assert left(tmp_path / "real") == {"new"}
    assert (tmp_path / "link" / NAMES[-1]).is_symlink()
    assert stat.S_IMODE((tmp_path / "real" / "model.bin").stat().st_mode) == 0o600
