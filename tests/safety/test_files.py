"""Files that users name: what is written over, what is kept, what is refused before any work."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zerotprune.safety.files import (
    bytes_of,
    check_writable,
    names_in,
    parse_json,
    replacing,
    text_of,
)


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_a_link_stays_a_link_and_a_mode_a_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    with replacing(link) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600  # private while it is written, too
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space"), OSError("encoder error")])
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, raised: OSError) -> None:
    with pytest.raises(OSError, match="own") as error, replacing(tmp_path / "own.json"):
        raise raised
    assert error.value.errno == raised.errno
    with pytest.raises(OSError, match="other") as error, replacing(tmp_path / "own.json"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "other")
    with pytest.raises(FileNotFoundError, match="own"), replacing(tmp_path / "own.json") as it:
        it.read_bytes()


def test_only_regular_files_are_written_over(tmp_path: Path) -> None:
    fifo, loop, dangling = tmp_path / "fifo", tmp_path / "loop", tmp_path / "dangling"
    os.mkfifo(fifo)
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "new")
    for path in (fifo, loop, Path("/dev/null")):
        with pytest.raises(ValueError, match="not a regular file"):
            check_writable(path)
        with pytest.raises(ValueError, match="not a regular file"):
            write(path)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ValueError, match="is a folder"):
        check_writable(tmp_path)
    write(dangling)
    assert (tmp_path / "new").read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    """Run as a user other than root, to whom nothing is read-only."""
    (tmp_path / "closed").mkdir(mode=0o555)
    (tmp_path / "file").touch(mode=0o444)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from zerotprune.safety.files import check_writable\n"
        "os.chdir(sys.argv[1]); os.getuid() or os.setuid(65534)\n"
        "for name in ('closed/x', 'file'):\n"
        "    try: check_writable(Path(name))\n"
        "    except PermissionError as error: print(error)"
    )
    tmp_path.chmod(0o777)
    for parent in [tmp_path, *tmp_path.parents][:4]:
        parent.chmod(parent.stat().st_mode | 0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "the folder closed is not writable",
        "file is read-only: give another name",
    ], done.stderr


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes("cat\ndog\n".encode("utf-8-sig"))
    assert names_in(tmp_path / "names.txt") == ["cat", "dog"]


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="expected a regular file"):
            text_of(path, "schedule")
        with pytest.raises(OSError, match="expected a regular file"):
            bytes_of(path)


@pytest.mark.parametrize("text", ["[" * 200_000, "{", "1" * 5000, b"\xff"])
def test_json_of_strangers(text: str) -> None:
    with pytest.raises(ValueError, match="bad JSON"):
        parse_json(text)
