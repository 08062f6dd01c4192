"""The README and the pages: they build, their links lead somewhere, their Python runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, name
from tests.nursery import nursery, run_script
from tests.waiting import GUARD

IDS = [name(page) for page in PAGES]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the Python blocks of all pages; return the errors by page."""
    folder = tmp_path_factory.mktemp("python")
    lines = run_script("from tests.docs import blocks; blocks.main()", str(folder))
    failed: dict[str, str] = json.loads(lines[-1])
    return failed


@pytest.mark.parametrize("page", IDS)
def test_python_blocks_run(page: str, python: dict[str, str]) -> None:
    assert page not in python, python[page]


@pytest.mark.parametrize("page", IDS)
def test_links_lead_somewhere(page: str) -> None:
    """Check links to our files and headings; Sphinx checks only those inside docs/."""
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


def test_the_pages_build(tmp_path: Path) -> None:
    """Build them as `make docs` does: a warning is an error."""
    strict = ("-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(tmp_path / "read"))
    code = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    done = nursery().run(code, *strict, str(ROOT / "docs"), str(tmp_path / "html"), limit=GUARD)
    assert done.returncode == 0, done.stderr[-3000:]
    for page in (ROOT / "docs").glob("*.md"):  # Sphinx has pages of its own, and a name wins
        assert (tmp_path / "html" / "_sources" / f"{page.name}.txt").is_file()
        assert page.stem not in ("genindex", "modindex", "search")
