"""The commands of the README and the pages run, and their options exist."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from tests.commands import quickly
from tests.docs.blocks import PAGES, ROOT, blocks, name
from tests.nursery import Done
from zerotprune.data import demo

IDS = [name(page) for page in PAGES]
#: of the built-in model, but not for a test: a server, two minutes of measuring, twelve blocks to
#: trace (tests/export has the command with a smaller model), and what depends on how busy the
#: machine is
NOT_RUN = {"app", "demo", "export"}
TIMED = {"--speedup", "--latency-ms"}
#: a test need not find anything
SHORTER = {"search": ("--trials", "3"), "calibrate": ("--evaluations", "2")}


def commands(page: Path) -> list[list[str]]:
    """Return every `zerotprune …` in the page's shell blocks, as the shell would split it."""
    calls = []
    for block in blocks(page):
        if block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["zerotprune"]:
                    calls.append(words[1:])
    return calls


def runs(command: list[str]) -> bool:
    """Does the command use the built-in model, and is it short?"""
    return "demo" in command[1:] and command[0] not in NOT_RUN and TIMED.isdisjoint(command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder for commands: an image of every class, and the files that pages ask for."""
    place = tmp_path_factory.mktemp("commands")
    shown, digits = demo.images(80, seed=1)
    for digit in range(10):
        images = place / "images" / str(digit)
        images.mkdir(parents=True)
        for number in (digits == digit).nonzero().flatten().tolist()[:1]:
            pixels = ((shown[number] + 1) * 127.5).round().byte().permute(1, 2, 0)
            Image.fromarray(pixels.numpy()).save(images / f"{number}.png")
    for page in PAGES:
        for block in blocks(page):
            if block.file:
                (place / block.file).write_text(block.text, "utf-8")
    return place


def shortened(command: list[str]) -> tuple[str, ...]:
    """Return the command with less to search for."""
    option, value = SHORTER.get(command[0], ("", ""))
    if not option:
        return tuple(command)
    at = command.index(option) if option in command else len(command)
    return (*command[:at], option, value, *command[at + 2 :])


@cache
def _run(command: tuple[str, ...], folder: Path) -> Done:
    return quickly(*command, cwd=folder)


@pytest.mark.parametrize("page", IDS)
def test_commands_run(page: str, folder: Path) -> None:
    """Run them in order, each once however many pages have it."""
    for command in commands(ROOT / page):
        if runs(command):
            done = _run(shortened(command), folder)
            assert done.returncode == 0, f"zerotprune {shlex.join(command)}\n{done.stderr[-2000:]}"


def test_every_option_exists(folder: Path) -> None:
    """Check commands that need real weights and images too, and those in running text."""
    used: dict[str, set[str]] = {}
    for page in PAGES:
        inline = re.findall(r"(?<!`)`zerotprune ([a-z][^`]*)`", page.read_text("utf-8"))
        for words in [*commands(page), *(call.split() for call in inline)]:
            options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            used.setdefault(words[0], set()).update(options - {"--help"})
    for command, options in used.items():
        help_text = _run((command, "--help"), folder).stdout
        known = set(re.findall(r"--[a-z][a-z-]*[a-z]", help_text))
        assert options <= known, f"zerotprune {command} has no {', '.join(sorted(options - known))}"
