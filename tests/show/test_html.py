"""The HTML file: whole, safe, and alive in a browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.waiting import GUARD
from zerotprune.show.html import write_html
from zerotprune.show.scene import Scene
from zerotprune.show.story import MARKS, Mark
from zerotprune.tracing import Fate


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "input", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_trusts_no_name(scene: Scene) -> None:
    nasty = '<script>alert("</script>")</script>{{data}}'
    captions = [nasty, *scene.captions[1:]]
    text = write_html(Scene(nasty, nasty, scene.images, scene.stories, captions))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen.count("script") == 2
    assert tags.seen.count("article") == 6
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    page = json.loads(data[1])
    letters = {mark[0]: mark for mark in Mark}
    assert page["marks"] == {letter: MARKS[mark] for letter, mark in letters.items()}
    for story, written in zip(scene.stories, page["stories"], strict=True):
        for view, stage in zip(story.stages, written["stages"], strict=True):
            fates = [Fate[letters[letter].name] for letter in stage["marks"]]
            assert fates == view.fate.flatten().tolist()
            assert stage["token"] is None
            partner = {at: to for at, to in enumerate(view.partner.flatten().tolist()) if to >= 0}
            assert stage["partner"] == {str(at): to for at, to in partner.items()}
            shares = [math.nan if value is None else value for value in stage["importance"]]
            exact = view.importance.flatten() / view.importance.nanmean()
            assert shares == pytest.approx(exact.tolist(), rel=0.06, nan_ok=True)


def test_the_page_in_a_browser(scene: Scene, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to open the page with")
    (tmp_path / "page.html").write_text(write_html(scene), encoding="utf-8")
    profile, url = f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path / 'page.html'}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", profile, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD)
    assert 'aria-valuetext="after block 9"' in done.stdout
    assert "Point at a patch" in done.stdout
    assert done.stdout.count('class="here"') == 6
