"""The page in a browser: how long from moving the slider to the new image, and its screenshot.

Wanted: at most 0.5 s for the built-in model and 1.5 s for DeiT-S (here with random weights, which
speed does not see) on two CPU cores, browser included. Needs Chromium and chromedriver.
Commands: python -m benchmarks.speed.page --moves 20
          python -m benchmarks.speed.page --model deit_tiny_patch16_224 --weights FILE \\
              --screenshot docs/app.png
"""

from __future__ import annotations

import base64
import io
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.inputs import parser
from zerotprune.measure import records
from zerotprune.methods import DEFAULT
from zerotprune.safety.files import check_writable, replacing

DEIT_S = "deit_small_patch16_224"
BUDGETS = (60, 45, 70, 52, 80, 40, 66, 75, 57, 88)
#: Moves the budget slider, and answers with the milliseconds until the new view has been drawn.
MOVE = """
const [percent, done] = arguments;
const slider = document.querySelector("#budget input[type=range]");
const drawn = () => document.querySelectorAll(".card svg")[0].innerHTML;
const before = drawn();
const write = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
write.call(slider, percent);
const started = performance.now();
slider.dispatchEvent(new Event("input", { bubbles: true }));
const look = () => {
  if (drawn() === before) requestAnimationFrame(look);
  else requestAnimationFrame(() => done(performance.now() - started));
};
look();
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--moves", type=int, default=0, help="of the slider, for each model")
    options.add_argument("--screenshot", type=Path, help="a PNG to write")
    options.add_argument("--model", default=DEIT_S, help="a timm model beside the built-in one")
    options.add_argument("--weights", type=Path, help="of the model; else they are random")
    options.add_argument("--width", type=int, default=1280)
    options.add_argument("--dark", action="store_true")
    options.add_argument("--csv", type=Path, help="add a row for each model to this file")
    chosen = options.parse_args()
    if chosen.screenshot is not None:
        check_writable(chosen.screenshot)
    if chosen.csv is not None:
        records.check_rows_fit(chosen.csv)
    serving = serve_page(chosen.model, chosen.weights)
    with serving as address, open_browser(chosen.width, chosen.dark) as driver:
        driver.get(address)
        wait_until_settled(driver)
        if chosen.screenshot is not None:
            take_screenshot(driver, chosen.screenshot)
        rows = [
            row
            for model in ("demo", chosen.model)
            for row in time_moves(driver, model, chosen.moves)
        ]
    if chosen.csv is not None:
        records.append(chosen.csv, rows)


def time_moves(driver: Any, model: str, moves: int) -> Iterator[dict[str, object]]:
    """Time from the slider to the new view, with and without a rival beside the method."""
    if not moves:
        return
    choose(driver, "model", model)
    for rival in ("tome", "none"):
        choose(driver, "rival", rival)
        took = []
        for move in range(moves):
            took.append(driver.execute_async_script(MOVE, str(BUDGETS[move % len(BUDGETS)])))
            time.sleep(0.2)
        median, spread = statistics.median(took), max(took) - min(took)
        beside = "alone" if rival == "none" else f"beside {rival}"
        print(f"{model}, {DEFAULT} {beside}: median {median:.0f} ms, worst {max(took):.0f} ms")
        yield {
            "table": "page", "model": model, "measure": "slider to view", "batch": 1,
            "name": f"{DEFAULT} {beside}", "precision": "float32", "mode": "eager",
            "latency_ms": round(median, 1), "latency_spread_ms": round(spread, 1),
        }  # fmt: skip


def take_screenshot(driver: Any, path: Path) -> None:
    """Save the whole page as it opens."""
    driver.execute_script("document.activeElement.blur()")
    width = driver.execute_script("return innerWidth")
    # The box of code draws the lines that are in sight alone: all shall be.
    shape = {"width": width, "height": 4000, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    time.sleep(1)
    bottom = driver.execute_script(
        "return document.querySelector('#lines').getBoundingClientRect().bottom + scrollY + 16"
    )
    part = {"x": 0, "y": 0, "width": width, "height": bottom, "scale": 1}
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": part, "captureBeyondViewport": True}
    )
    with Image.open(io.BytesIO(base64.b64decode(taken["data"]))) as screenshot:
        small = screenshot.convert("RGB")
    with replacing(path) as temporary:
        small.save(temporary, "PNG", optimize=True)
    print(f"{path}: {small.width} × {small.height}, {path.stat().st_size // 1024} kB")


def choose(driver: Any, box: str, name: str) -> None:
    driver.find_element("css selector", f"#{box} input").click()
    time.sleep(0.3)
    for option in driver.find_elements("css selector", "ul[role=listbox] [role=option]"):
        if option.get_attribute("aria-label") == name:
            option.click()
            break
    wait_until_settled(driver)


def wait_until_settled(driver: Any) -> None:
    """Wait until the page has been drawn and measured."""
    time.sleep(0.5)
    for _ in range(600):
        if driver.find_elements("css selector", ".card") and not driver.find_elements(
            "css selector", "#facts .pending"
        ):
            return
        time.sleep(0.1)
    raise SystemExit("the page did not come to rest")


@contextmanager
def serve_page(model: str, weights: Path | None) -> Iterator[str]:
    """Serve the page as its command does."""
    command = [sys.executable, "-m", "zerotprune", "app", "--no-browser", "--model", model]
    command += ["--random-weights"] if weights is None else ["--weights", str(weights)]
    surroundings = os.environ | {"COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings) as process:
        assert process.stdout is not None
        words: Sequence[str] = process.stdout.readline().split()
        try:
            yield next(word for word in words if word.startswith("http://"))
        finally:
            process.terminate()


@contextmanager
def open_browser(width: int, dark: bool) -> Iterator[Any]:
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        raise SystemExit("Chromium and chromedriver are needed: `make browser` installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    shape = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
    try:
        started.set_script_timeout(60)
        started.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        started.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        yield started
    finally:
        started.quit()


if __name__ == "__main__":
    main()
