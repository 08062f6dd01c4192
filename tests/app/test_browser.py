"""The page in a real browser: Chromium, headless; skipped where there is none."""

from __future__ import annotations

import base64
import io
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import zerotprune as ztp
from tests.app.browser import Page
from tests.app.serving import serving
from tests.waiting import GUARD
from zerotprune.app.catalog import CatalogEntry
from zerotprune.app.render import thumbnail_url
from zerotprune.app.uploads import DAMAGED, NOT_AN_IMAGE, TOO_LARGE
from zerotprune.app.view_model import Selection, ViewModel, build_view_model, write_python
from zerotprune.methods import ToMe, TopK

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(find_spec("gradio") is None, reason="no gradio"),
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no chromium and chromedriver: `make browser` installs them",
    ),
    pytest.mark.usefixtures("one_thread"),
]


#: fewer samples than for users: the cores are for the browser
COARSELY = """
from zerotprune.app import controller
controller.MAX_TIMED_ROUNDS = controller.MIN_TIMED_ROUNDS = 1
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve the page by its command, with a separate folder for temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    with serving(folder, COARSELY) as port:
        yield f"http://127.0.0.1:{port}/", folder
    assert written(folder) == []


def written(folder: Path) -> list[Path]:
    """Return all files but torch's empty folder for compiled code."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
                     "--window-size=1400,1200"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    started.set_script_timeout(GUARD)
    yield started
    started.quit()


@pytest.fixture
def tab(driver: Any, served: tuple[str, Path]) -> Page:
    """Return the page before it is opened."""
    return Page(driver, served[0])


@pytest.fixture
def page(tab: Page) -> Page:
    return tab.open()


def expected(
    entry: CatalogEntry, image: Image.Image, percent: int, method: str, rival: str
) -> ViewModel:
    return build_view_model(
        entry, entry.prepare(image), Selection("demo", method, rival, percent / 100)
    )


def test_it_opens_offline_and_agrees_with_the_api(
    page: Page, entry: CatalogEntry, image: Image.Image
) -> None:
    model, full = entry.model, ztp.gmacs(entry.model)
    schedule = ztp.schedule_for(model, gmacs=0.65 * full)
    costs = page.gmacs()
    assert costs["unpruned"] == f"{full:.4f}"
    assert costs["fold"] == f"{ztp.gmacs(model, schedule):.4f}"
    shown = expected(entry, image, 65, "fold", "tome")
    rival = shown.methods[1].schedule
    assert rival.method == ToMe()
    assert costs["tome"] == f"{ztp.gmacs(model, rival):.4f}"
    page.wait_for(shown)
    page.until(lambda: not page.all("#facts .pending"))
    times = [float(cell.text) for cell in page.all("#facts .ms")]
    assert len(times) == 3
    assert min(times) > 0
    asked = [json.loads(line["message"])["message"] for line in page.driver.get_log("performance")]
    urls = [
        line["params"]["request"]["url"]
        for line in asked
        if line["method"] == "Network.requestWillBeSent"
    ]
    assert len(urls) > 5
    assert all(url.startswith((page.address, "data:", "blob:")) for url in urls)
    complaints = [line["message"] for line in page.driver.get_log("browser")]
    assert not [line for line in complaints if "Security" in line or "Error" in line]


def test_slider_example_and_method(
    page: Page, entry: CatalogEntry, examples: list[tuple[str, Image.Image]]
) -> None:
    from selenium.webdriver.common.keys import Keys

    images = [image for _, image in examples]
    page.set_budget(45)
    page.wait_for(expected(entry, images[0], 45, "fold", "tome"))
    page.press("#budget input[type=range]", *[Keys.ARROW_RIGHT] * 6, *[Keys.ARROW_LEFT] * 5)
    page.wait_for(expected(entry, images[0], 46, "fold", "tome"))
    page.press(".thumb[data-at='3']", Keys.ENTER)
    page.wait_for(expected(entry, images[3], 46, "fold", "tome"))
    page.choose("method", "evit")
    page.wait_for(expected(entry, images[3], 46, "evit", "tome"))
    page.choose("rival", "none")
    shown = expected(entry, images[3], 46, "evit", "none")
    page.wait_for(shown)
    origin = {
        "origin": page.address.rstrip("/"),
        "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"],
    }
    page.driver.execute_cdp_cmd("Browser.grantPermissions", origin)
    hidden = """const box = document.querySelector("#lines .cm-scroller");
        return [box.scrollHeight - box.clientHeight, box.scrollWidth - box.clientWidth];"""
    assert max(page.js(hidden)) <= 0  # the code is whole
    page.one("#lines button[aria-label=Copy]").click()
    copied = "navigator.clipboard.readText().then(arguments[0])"
    wanted = write_python(shown).strip()
    page.until(lambda: page.driver.execute_async_script(copied).strip() == wanted)


def test_the_stage_slider_goes_through_the_stages(
    page: Page, entry: CatalogEntry, image: Image.Image
) -> None:
    from selenium.webdriver.common.keys import Keys

    page.choose("rival", "none")
    page.until(lambda: len(page.all(".card")) == 2)
    story = expected(entry, image, 65, "fold", "none").methods[0].story
    page.press("input.stage", Keys.HOME)
    card = ".card[data-method='fold'] "
    assert page.one(card + "figcaption .on").text.startswith("all 196")
    assert page.all(card + "svg g[data-block].on") == []
    for stage in story.stages:
        page.press("input.stage", Keys.ARROW_RIGHT)
        assert f" {stage.block} of 12" in page.one(".where").text
        assert page.one(card + "figcaption .on b").text == str(stage.kept)
        (shown,) = page.all(card + "svg g[data-block].on")
        assert shown.get_attribute("data-block") == str(stage.block)
        assert shown.is_displayed()
    assert not page.one(card + "svg .on .partners").is_displayed()
    page.press(".partners-on", Keys.SPACE)
    assert page.one(card + "svg .on .partners").is_displayed()
    page.press("input.stage", Keys.HOME, Keys.ARROW_RIGHT)
    page.set_budget(50)  # another budget is shown at the same stage, which is at another block
    other = expected(entry, image, 50, "fold", "none")
    blocks = [stage.block for stage in other.methods[0].story.stages]
    assert blocks[0] != story.stages[0].block
    page.wait_for(other)
    page.until(lambda: f" {blocks[0]} of 12" in page.one(".where").text)
    start, *texts = page.play()
    assert "before" in start
    assert [text.split()[-3] for text in texts] == [str(block) for block in blocks]


def test_uploads_good_and_bad(page: Page, entry: CatalogEntry, tmp_path: Path) -> None:
    torch.manual_seed(0)
    uploaded = Image.effect_noise((640, 480), 90).convert("RGB")
    uploaded.save(tmp_path / "image.png")
    upload = ".drop input.file"
    page.press(upload, str(tmp_path / "image.png"))
    shown = expected(entry, uploaded, 65, "fold", "tome")
    page.wait_for(shown)
    assert page.status()  # the built-in model does not know such images
    thumbnail = page.until(lambda: page.one(".thumb[data-at='uploaded'][aria-pressed='true'] img"))
    assert thumbnail.get_attribute("src") == thumbnail_url(uploaded)
    assert len(page.all(".thumb[aria-pressed='true']")) == 1
    costs = page.gmacs()
    Image.new("1", (6000, 5000)).save(tmp_path / "huge.png")
    (tmp_path / "text.png").write_text("I am no image")
    uploaded.save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "large.png").write_bytes(bytes(17 * 2**20))
    for name, message in (
        ("huge.png", "6000 × 5000"),
        ("text.png", NOT_AN_IMAGE),
        ("cut.jpg", DAMAGED),
        ("page.svg", NOT_AN_IMAGE),
        ("large.png", TOO_LARGE),
    ):
        page.press(upload, str(tmp_path / name))
        page.until(lambda message=message: message in page.status())  # type: ignore[misc]
        assert str(tmp_path) not in page.driver.page_source
        assert page.gmacs() == costs
    assert page.shows(shown)  # the good image is still there
    page.set_budget(60)
    page.wait_for(expected(entry, uploaded, 60, "fold", "tome"))


def test_a_schedule_is_edited_saved_and_loaded(
    page: Page, entry: CatalogEntry, tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    way = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", way)
    page.choose("method", "zero-tprune")  # whose stages have a share to keep
    page.until(lambda: "zero-tprune" in page.gmacs())
    page.set_budget(55)
    schedule = ztp.schedule_for(entry.model, cost=0.55, method="zero-tprune")
    cost = f"{ztp.gmacs(entry.model, schedule):.4f}"
    page.until(lambda: page.gmacs()["zero-tprune"] == cost)
    page.one("#edit button").click()
    page.until(lambda: page.one("#stages .download").is_displayed())
    page.one("#stages .download").click()
    file = tmp_path / "schedule.json"
    page.until(file.exists)
    assert ztp.Schedule.load(file) == schedule
    keep = page.one("#stages tbody tr:nth-child(2) input[name=keep]")
    keep.send_keys(Keys.CONTROL, "a")
    keep.send_keys("1.5", Keys.ENTER)
    page.until(lambda: "1.5" in page.status())
    assert page.gmacs()["zero-tprune"] == cost
    keep = page.one("#stages tbody tr:nth-child(2) input[name=keep]")
    keep.send_keys(Keys.CONTROL, "a")
    keep.send_keys("0.9", Keys.ENTER)
    stages = list(schedule.stages)
    stages[1] = ztp.Stage(stages[1].block, 0.9, stages[1].similar, stages[1].rounds)
    other = f"{ztp.gmacs(entry.model, ztp.Schedule(tuple(stages))):.4f}"
    page.until(lambda: page.gmacs()["zero-tprune"] == other)
    page.press("#stages .json", str(file))
    page.until(lambda: page.gmacs()["zero-tprune"] == cost)
    page.choose("method", "random")  # the edited stages stay
    page.until(lambda: "random" in page.gmacs())
    assert page.one(".stages").get_attribute("data-json") == schedule.by("random").to_json()
    loaded = ztp.schedule_for(entry.model, cost=0.7, method="tome-uni")
    loaded.save(tmp_path / "loaded.json")  # the list of methods follows the file
    page.press("#stages .json", str(tmp_path / "loaded.json"))
    page.until(lambda: page.one("#method input").get_attribute("value") == "tome-uni")
    assert list(page.gmacs()) == ["unpruned", "tome-uni", "tome"]
    similar = page.one("#stages tbody tr:nth-child(2) input[name=similar]")
    similar.send_keys(Keys.CONTROL, "a")
    similar.send_keys("1", Keys.ENTER)  # what is typed stays the file's method
    first, second, *others = loaded.stages
    edited = ztp.Schedule((first, replace(second, similar=1), *others), loaded.method)
    page.until(lambda: page.one(".stages").get_attribute("data-json") == edited.to_json())
    assert page.gmacs()["tome-uni"] == f"{ztp.gmacs(entry.model, edited):.4f}"
    (tmp_path / "seeded.json").write_text(schedule.by(TopK("random", seed=3)).to_json())
    page.press("#stages .json", str(tmp_path / "seeded.json"))
    page.until(lambda: page.one("#method input").get_attribute("value") == "top-k")
    page.choose("rival", "none")
    page.until(lambda: list(page.gmacs()) == ["unpruned", "top-k"])
    page.choose("method", "random")
    page.until(lambda: list(page.gmacs()) == ["unpruned", "random"])
    (tmp_path / "bad.json").write_text('{"version": 9, "stages": []}')
    page.press("#stages .json", str(tmp_path / "bad.json"))
    page.until(lambda: "version 9" in page.status())


def test_two_tabs_at_once(
    page: Page, entry: CatalogEntry, examples: list[tuple[str, Image.Image]]
) -> None:
    driver, first = page.driver, page.driver.current_window_handle
    images = [image for _, image in examples]
    page.set_budget(40)
    driver.switch_to.new_window("tab")
    try:
        page.open()
        second = driver.current_window_handle
        page.one(".thumb[data-at='1']").click()
        page.set_budget(80)
        driver.switch_to.window(first)
        page.wait_for(expected(entry, images[0], 40, "fold", "tome"))
        driver.switch_to.window(second)
        beside = expected(entry, images[1], 80, "fold", "tome")
        page.wait_for(beside)
        driver.switch_to.window(first)
        page.choose("rival", "none")  # it has kept its image and budget
        page.wait_for(expected(entry, images[0], 40, "fold", "none"))
        driver.switch_to.window(second)
        assert page.shows(beside)
        driver.close()
    finally:
        driver.switch_to.window(first)


@pytest.mark.parametrize(("scheme", "widths"), [("light", (400, 1400)), ("dark", (1400, 400))])
def test_it_fits_a_phone_and_a_desktop_in_light_and_dark(
    tab: Page, scheme: str, widths: tuple[int, ...]
) -> None:
    """Open it at the first width; then the window gets the second."""
    try:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        tab.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        for width in widths:
            shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            tab.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
            if width == widths[0]:
                tab.open()
            assert_it_fits(tab, width)
            ground = tab.js("return getComputedStyle(document.body).backgroundColor")
            brightness = sum(map(int, ground[4:-1].split(", ")))
            assert brightness > 3 * 200 if scheme == "light" else brightness < 3 * 60
    finally:
        tab.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        tab.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def assert_it_fits(tab: Page, width: int) -> None:
    sizes = "return [innerWidth, document.documentElement.scrollWidth]"
    wide = tab.until(lambda: (shown := tab.js(sizes))[0] == width and shown)
    assert width >= wide[1]
    for part in ("#budget input", "input.stage", ".card", "#facts table", "#lines"):
        box = tab.one(part).rect
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    taken = tab.driver.execute_cdp_cmd("Page.captureScreenshot", {})
    with Image.open(io.BytesIO(base64.b64decode(taken["data"]))) as screenshot:
        assert screenshot.width == width


def test_the_server_opens_nothing_that_a_browser_names(served: tuple[str, Path]) -> None:
    address, folder = served
    secret = folder / "secret.txt"
    secret.write_text("not for the browser")
    try:
        for path in (
            f"gradio_api/file={secret}",
            "gradio_api/file=/etc/passwd",
            "gradio_api/file=http://example.org/",
            "gradio_api/proxy=http://example.org/",
            "assets/%2e%2e/%2e%2e/%2e%2e/__init__.py",
            "static/..%2f..%2f..%2f__init__.py",
            "gradio_api/upload",
            "gradio_api/info",
            "docs",
        ):
            assert status_of(address + path) in (403, 404, 405), path
    finally:
        secret.unlink()
    file = {"path": "http://example.org/", "meta": {"_type": "gradio.FileData"}}
    sent = {"data": [file, file, file, file, file], "fn_index": 0, "session_hash": "forged"}
    assert status_of(address + "gradio_api/queue/join", json.dumps(sent).encode()) == 400
    assert status_of(address, host="evil.example") == 400
    (private,) = written(folder)
    assert private.stat().st_mode & 0o077 == 0
    kept = [path.name for path in private.rglob("*") if path.is_file()]
    assert kept == [".owner"]  # which says that somebody is there


def status_of(url: str, body: bytes | None = None, host: str | None = None) -> int:
    headers = {"content-type": "application/json"} | ({"host": host} if host else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
