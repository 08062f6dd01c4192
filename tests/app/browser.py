"""The page in a tab of a real browser: what there is to see and to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.waiting import wait_until
from zerotprune.app.view_model import ViewModel

#: The button shows ▶ again when the last stage has been reached.
_PLAY = """
const done = arguments[0], view = document.querySelector("#view"), texts = [];
const look = () => {
  const text = view.querySelector(".where").textContent;
  if (text !== texts.at(-1)) texts.push(text);
  if (view.querySelector(".play").textContent === "▶") {
    observer.disconnect();
    done(texts);
  }
};
const observer = new MutationObserver(look);
view.querySelector(".play").click();
observer.observe(view, { childList: true, characterData: true, subtree: true });
texts.push(view.querySelector(".where").textContent);
"""


class Page:
    """A tab with the page open: what it shows and what can be done."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self) -> Page:
        self.driver.get(self.address)
        self.until(lambda: self.all("#view .card") and self.all("#facts .gmacs"))
        return self

    def until(self, holds: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException

        def shown() -> Any:
            try:
                return holds()
            except (StaleElementReferenceException, IndexError):
                return None

        try:
            return wait_until(shown, "the page", pause=0.03)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {self.status()!r}") from None

    def all(self, selector: str) -> list[Any]:
        elements: list[Any] = self.driver.find_elements("css selector", selector)
        return elements

    def one(self, selector: str) -> Any:
        return self.all(selector)[0]

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def status(self) -> str:
        return " ".join(line.text for line in self.all("#status .status"))

    def gmacs(self) -> dict[str, str]:
        """Return the GMACs on the page, by method."""
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
        """Are exactly these costs and predictions on the page, to the digit?"""
        wanted = {"unpruned": f"{shown.entry.unpruned_gmacs:.4f}"}
        wanted |= {method.name: f"{method.gmacs:.4f}" for method in shown.methods}
        predictions = {method.name: method.story.after for method in shown.methods}
        predictions["unpruned"] = shown.methods[0].story.before
        return self.gmacs() == wanted and all(
            self.predicted(name) == [f"{one.label} {100 * one.share:.1f} %" for one in expected]
            for name, expected in predictions.items()
        )

    def wait_for(self, shown: ViewModel) -> None:
        self.until(lambda: self.shows(shown))

    def press(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def set_budget(self, percent: int) -> None:
        """Type the number into the slider's box."""
        from selenium.webdriver.common.keys import Keys

        box = self.one("#budget input[type=number]")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(str(percent), Keys.ENTER)

    def play(self) -> list[str]:
        """Press play and return the values of the stage slider until it stops by itself."""
        return list(self.driver.execute_async_script(_PLAY))

    def choose(self, box: str, name: str) -> None:
        self.one(f"#{box} input").click()
        options = self.until(lambda: self.all("ul[role=listbox] [role=option]"))
        for option in options:
            if option.get_attribute("aria-label") == name:
                option.click()
                return
        raise AssertionError(f"{box} does not offer {name}")
