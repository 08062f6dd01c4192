"""What happens when somebody touches a control: each tab has a session, all share the models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from PIL import Image

from ..schedule import Schedule
from . import controls, panels
from .catalog import BUILT_IN, Offer, Sight
from .snippet import python_lines
from .timing import race
from .uploads import TOO_LARGE, from_text
from .view_model import Choice, Controls, Screen, find, look, read_choice, read_stages
from .worker import Machine, Stopped

LOG = logging.getLogger(__name__)
METHOD, RIVAL, PERCENT = "zero-tprune", "tome", 65
UNEXPECTED = "Something went wrong here; your picture and settings are as they were."
NOT_DIGITS = (
    "The built-in model reads one digit among clutter. On other pictures you see how it prunes; "
    "what it predicts means nothing."
)


@dataclass
class Session:
    """What one tab has on its screen. Nobody else sees it."""

    sights: dict[str, Sight] = field(default_factory=dict)  # of its picture, by model
    own_picture: bool = False
    schedule: Schedule | None = None  # the user's own stages, where the dial does not rule
    screen: Screen | None = None
    turn: int = 0  # counts the screens: work for an older one is not finished


@dataclass(frozen=True)
class Shown:
    """The page's parts after a change; None: as before."""

    status: str
    picture: str | None = None
    view: str | None = None
    facts: str | None = None
    stages: str | None = None
    lines: str | None = None
    percent: int | None = None


class Desk:
    """The models and examples, and the machine that works for everybody in turn."""

    def __init__(
        self,
        machine: Machine,
        offers: Sequence[Offer],
        examples: Sequence[tuple[str, Image.Image]],
    ) -> None:
        self.machine = machine
        self.offers: Mapping[str, Offer] = {offer.name: offer for offer in offers}
        self.examples = list(examples)
        self._seen: dict[int, dict[str, Sight]] = {}

    def choose(self, session: Session, controls: Controls) -> Shown:
        """Another model, method or rival; or the page has just been opened."""
        return self._safely(
            session, lambda: self._update(session, read_choice(controls, session.schedule))
        )

    def dial(self, session: Session, controls: Controls) -> Shown:
        """Another budget: it replaces the user's own stages."""
        return self._safely(session, lambda: self._update(session, read_choice(controls)))

    def edit(self, session: Session, controls: Controls, text: object) -> Shown:
        """The user's own stages, from the table or from a file."""
        return self._safely(
            session, lambda: self._update(session, read_choice(controls, read_stages(text)))
        )

    def example(self, session: Session, controls: Controls, at: object) -> Shown:
        """One of the example pictures."""

        def work() -> Shown:
            if not isinstance(at, int) or not 0 <= at < len(self.examples):
                raise ValueError("there is no such example")
            choice = read_choice(controls, session.schedule)
            return self._update(session, choice, self._example(at), own=False)

        return self._safely(session, work)

    def upload(self, session: Session, controls: Controls, sent: Mapping[str, object]) -> Shown:
        """The user's own picture, as the browser sent it."""

        def work() -> Shown:
            if sent.get("refused") == "large":
                raise ValueError(TOO_LARGE)
            picture = from_text(sent.get("text"))
            sights = {name: offer.see(picture) for name, offer in self.offers.items()}
            choice = read_choice(controls, session.schedule)
            return self._update(session, choice, sights, own=True)

        return self._safely(session, work)

    def measure(self, session: Session) -> str | None:
        """The facts with milliseconds; None if there is something newer to look at."""
        screen, turn = session.screen, session.turn
        if screen is None:
            return None
        try:
            found = race(screen, self.machine, lambda: session.turn != turn)
        except Stopped:
            return None
        except Exception:
            LOG.exception("measuring failed")
            return None
        return None if found is None else panels.facts(screen, found)

    def _update(
        self,
        session: Session,
        choice: Choice,
        sights: dict[str, Sight] | None = None,
        own: bool | None = None,
    ) -> Shown:
        """The session changes only once all has gone well."""
        offer = find(self.offers, choice.model)
        sights = sights or session.sights or self._example(0)
        before = session.screen
        screen = look(offer, sights[offer.name], choice, before)
        same = before is not None and before.sight is screen.sight
        session.sights, session.screen = sights, screen
        session.own_picture = session.own_picture if own is None else own
        session.schedule = screen.choice.schedule
        notes = list(screen.notes)
        if session.own_picture and offer.name == BUILT_IN:
            notes.append(NOT_DIGITS)
        return Shown(
            controls.status(" ".join(controls.sentence(note) for note in notes)),
            None if same else panels.picture(screen),
            panels.view(screen),
            panels.facts(screen),
            controls.stages(screen.sides[0].contender.schedule),
            python_lines(screen),
            # A dial that moves under the hand cannot be turned: it follows own stages alone.
            None if choice.schedule is None else round(100 * screen.share),
        )

    def _example(self, at: int) -> dict[str, Sight]:
        if at not in self._seen:
            picture = self.examples[at][1]
            self._seen[at] = {name: offer.see(picture) for name, offer in self.offers.items()}
        return self._seen[at]

    def _safely(self, session: Session, work: Callable[[], Shown]) -> Shown:
        session.turn += 1
        try:
            return self.machine.do(work)
        except ValueError as error:
            return Shown(controls.status(controls.sentence(error), "error"))
        except Stopped:
            return Shown("")
        except Exception:  # what it is concerns whoever started the page, not whoever looks at it
            LOG.exception("a request failed")
            return Shown(controls.status(UNEXPECTED, "error"))
