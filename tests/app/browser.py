"""The page in a tab of a real browser: what there is to see and to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from zerotprune.app.view_model import ViewModel

WAIT = 30  # seconds, for a busy machine


class Page:
    """A tab with the page open, and what there is to see and to do."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self) -> Page:
        self.driver.get(self.address)
        self.until(lambda: self.all("#view .card") and self.all("#facts .gmacs"))
        return self

    def until(self, holds: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException

        started = time.monotonic()
        while time.monotonic() - started < WAIT:
            try:
                if held := holds():
                    return held
            except (StaleElementReferenceException, IndexError):
                pass
            time.sleep(0.03)
        raise AssertionError(f"waited {WAIT} s in vain; the page says {self.status()!r}")

    def all(self, selector: str) -> list[Any]:
        elements: list[Any] = self.driver.find_elements("css selector", selector)
        return elements

    def one(self, selector: str) -> Any:
        return self.all(selector)[0]

    def js(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def status(self) -> str:
        return " ".join(each.text for each in self.all("#status .status"))

    def gmacs(self) -> dict[str, str]:
        """As they are on the page, by method."""
        rows = self.js(
            "return [...document.querySelectorAll('#facts tbody tr')].map("
            "row => [row.dataset.method, row.querySelector('.gmacs').textContent])"
        )
        return dict(rows)

    def predicted(self, method: str) -> list[str]:
        lines = self.js(
            "return [...document.querySelectorAll(`.card[data-method='${arguments[0]}'] .bars li`)]"
            ".map(line => line.querySelector('.label').textContent + ' ' "
            "+ line.querySelector('.share').textContent)",
            method,
        )
        return list(lines)

    def shows(self, shown: ViewModel) -> bool:
        """Is exactly this on the page? Costs and predictions, to the digit."""
        wanted = {"unpruned": f"{shown.entry.unpruned:.4f}"}
        wanted |= {each.name: f"{each.gmacs:.4f}" for each in shown.methods}
        answers = {each.name: each.story.after for each in shown.methods}
        answers["unpruned"] = shown.methods[0].story.before
        return self.gmacs() == wanted and all(
            self.predicted(name) == [f"{said.label} {100 * said.share:.1f} %" for said in line]
            for name, line in answers.items()
        )

    def wait_for(self, shown: ViewModel) -> None:
        self.until(lambda: self.shows(shown))

    def press(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def set_budget(self, percent: int) -> None:
        """By keyboard, as the number in the slider's box."""
        from selenium.webdriver.common.keys import Keys

        box = self.one("#budget input[type=number]")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(str(percent), Keys.ENTER)

    def choose(self, box: str, name: str) -> None:
        self.one(f"#{box} input").click()
        options = self.until(lambda: self.all("ul[role=listbox] [role=option]"))
        for option in options:
            if option.get_attribute("aria-label") == name:
                option.click()
                return
        raise AssertionError(f"{box} does not offer {name}")
