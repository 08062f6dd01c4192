"""The README and the pages: they build, their links lead somewhere, their examples run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from tests.commands import quickly
from tests.docs.blocks import PAGES, ROOT, blocks, name
from tests.nursery import Done, said_by
from zerotprune.data import demo

IDS = [name(page) for page in PAGES]
#: of the built-in model, but not for a test: a server, two minutes of measuring, twelve blocks to
#: trace (tests/export has the command with a smaller model), and what depends on how busy the
#: machine is
NOT_RUN = {"app", "demo", "export"}
TIMED = {"--speedup", "--latency-ms"}


def commands(page: Path) -> list[list[str]]:
    """Every `zerotprune …` in the page's shell blocks, as the shell would split it."""
    found = []
    for block in blocks(page):
        if block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["zerotprune"]:
                    found.append(words[1:])
    return found


def runs(command: list[str]) -> bool:
    """Is it about the built-in model, and short?"""
    return "demo" in command[1:] and command[0] not in NOT_RUN and TIMED.isdisjoint(command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands run: an image of every class, and the files that pages tell to write."""
    place = tmp_path_factory.mktemp("commands")
    shown, digits = demo.images(80, seed=1)
    for digit in range(10):
        each = place / "images" / str(digit)
        each.mkdir(parents=True)
        for number in (digits == digit).nonzero().flatten().tolist()[:1]:
            pixels = ((shown[number] + 1) * 127.5).round().byte().permute(1, 2, 0)
            Image.fromarray(pixels.numpy()).save(each / f"{number}.png")
    for page in PAGES:
        for block in blocks(page):
            if block.file:
                (place / block.file).write_text(block.text, "utf-8")
    return place


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages whose Python blocks failed, and how."""
    folder = tmp_path_factory.mktemp("python")
    said = said_by("from tests.docs import blocks; blocks.main()", str(folder))
    failed: dict[str, str] = json.loads(said[-1])
    return failed


@pytest.mark.parametrize("page", IDS)
def test_python_blocks_run(page: str, python: dict[str, str]) -> None:
    assert page not in python, python[page]


@cache
def _run(command: tuple[str, ...], folder: Path) -> Done:
    return quickly(*command, cwd=folder)


@pytest.mark.parametrize("page", IDS)
def test_commands_run(page: str, folder: Path) -> None:
    """In their order, each once however many pages have it."""
    for command in commands(ROOT / page):
        if runs(command):
            done = _run(tuple(command), folder)
            assert done.returncode == 0, f"zerotprune {shlex.join(command)}\n{done.stderr[-2000:]}"


def test_every_option_exists(folder: Path) -> None:
    """Also those of commands that need real weights and images, and in running text."""
    used: dict[str, set[str]] = {}
    for page in PAGES:
        inline = re.findall(r"(?<!`)`zerotprune ([a-z][^`]*)`", page.read_text("utf-8"))
        for words in [*commands(page), *(each.split() for each in inline)]:
            options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            used.setdefault(words[0], set()).update(options - {"--help"})
    for command, options in used.items():
        help_text = _run((command, "--help"), folder).stdout
        known = set(re.findall(r"--[a-z][a-z-]*[a-z]", help_text))
        assert options <= known, f"zerotprune {command} has no {', '.join(sorted(options - known))}"


def test_the_readme_is_a_door() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", IDS)
def test_links_lead_somewhere(page: str) -> None:
    """To files and headings of ours; Sphinx checks only those inside docs/."""
    place = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", place.read_text("utf-8")):
        path, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = place.parent / path if path else place
        assert target.exists(), f"{page} links to {link}"
        if heading:
            lines = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)
            assert heading in map(_slug, lines), f"{page} links to {link}"


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_map_is_that_of_the_source() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "map.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_pages_build(tmp_path: Path) -> None:
    """As `make docs` builds them: a warning is an error."""
    strict = ("-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(tmp_path / "read"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *strict, ROOT / "docs", tmp_path / "html"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page in (ROOT / "docs").glob("*.md"):  # Sphinx has pages of its own, and a name wins
        assert (tmp_path / "html" / "_sources" / f"{page.name}.txt").is_file()
        assert page.stem not in ("genindex", "modindex", "search")
