"""How a command ends: whatever was raised is one line and an exit code; ranges are in the help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import pytest
from cyclopts import UnusedCliTokensError

from tests.commands import MAIN, quickly
from tests.nursery import nursery
from zerotprune.cli import COMMANDS, _app
from zerotprune.cli.checks import Read, Written, marks
from zerotprune.cli.ending import ending
from zerotprune.cli.options import FigureFolder
from zerotprune.safety.interrupts import Interrupts
from zerotprune.safety.ranges import RANGES, Range, check_range


def ended(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    interrupts = Interrupts()
    with pytest.raises(SystemExit) as stopped, ending(interrupts):  # noqa: PT012
        interrupts.running()
        raise error
    return int(str(stopped.value.code)), capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("two\nlines"), 2, "zerotprune: two lines\n"),
        (FileNotFoundError(2, "No such file", "x.png"), 2, "zerotprune: x.png: No such file\n"),
        (OSError("a sentence"), 2, "zerotprune: a sentence\n"),
        (ValueError("[/b] :cat: {x} \x1b[31m"), 2, "zerotprune: [/b] :cat: {x} \ufffd[31m\n"),
        (UnusedCliTokensError(unused_tokens=["0.6"]), 2, "zerotprune: unexpected argument 0.6: "),
        (MemoryError(), 2, "zerotprune: not enough memory"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            2,
            "zerotprune: a process that decodes images was killed",
        ),
        (KeyboardInterrupt(), 130, "zerotprune: stopped\n"),
        (KeyboardInterrupt("stopped after 3 of 9"), 130, "zerotprune: stopped after 3 of 9\n"),
    ],
)
def test_a_mistake_is_a_sentence(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = ended(error, capsys)
    assert status == code
    assert output.startswith(message)
    assert output.count("\n") == 1


def test_a_fault_of_ours_is_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, output = ended(ZeroDivisionError("by zero"), capsys)
    (file,) = tmp_path.iterdir()
    assert code == 1
    assert output.endswith(f"{file}\n")
    assert output.count("\n") == 1
    assert "ZeroDivisionError: by zero" in file.read_text()
    monkeypatch.setenv("ZEROTPRUNE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError), ending(Interrupts()):
        raise ZeroDivisionError


def test_a_reader_that_goes_away_is_no_mistake() -> None:
    closed = "import os; read, write = os.pipe(); os.close(read); os.dup2(write, 1); "
    done = nursery().run(closed + MAIN, "info", "demo", strict=True)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_no_mistake(name: str) -> None:
    closed = f"import os, sys; sys.{name} = None; "
    done = nursery().run(closed + MAIN, "info", "demo", strict=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (name != "stdout")


def numbers(hint: Any) -> bool:
    """Is it a number, or a list or union with numbers?"""
    return hint in (int, float) or any(map(numbers, get_args(hint)))


def test_options_say_their_ranges_and_files_and_the_help_prints_the_ranges() -> None:
    for name in COMMANDS:
        collection = _app([name])[name].assemble_argument_collection()
        for argument in collection:
            annotation = argument.field_info.annotation
            kinds = {type(mark) for mark in marks(annotation)}
            if numbers(argument.hint):
                assert Range in kinds, (name, argument.name)
            if argument.hint in (Path, Path | None) and annotation != FigureFolder:
                assert kinds & {Read, Written}, (name, argument.name)
    printed = " ".join(quickly("search", "--help").stdout.replace("│", " ").split())
    for name in ("trials", "cost", "size", "batch", "workers"):
        assert f"[{RANGES[name]}]" in printed
    with pytest.raises(ValueError, match="cost must be above 0, got nan"):
        check_range("cost", float("nan"))


@pytest.mark.parametrize("line", ["bench demo --data x --strict", "export demo --out x --limit 3"])
def test_a_group_of_options_can_grow_in_another_module(line: str) -> None:
    _, bound, _ = _app([]).parse_args(line.split(), exit_on_error=False, print_error=False)
    assert bound.arguments["model"] == "demo"


def test_names_that_are_no_text_are_told(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    done = nursery().run(MAIN, "info", "demo", "--schedule", name, cwd=tmp_path)
    assert done.returncode == 2
    assert "neither a preset" in done.stderr
    assert done.stderr.count("\n") == 1
