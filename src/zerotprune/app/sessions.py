"""Who has asked for results and who is there to read them: what nobody fetches is dropped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

Drop = Callable[[str], Awaitable[None]]

#: seconds that results wait: the page fetches them at once, and reads as long as there are any
UNREAD = 60.0


class Sessions:
    """A session is a tab, by the name that it has given itself."""

    def __init__(self, drop: Drop) -> None:
        self._drop, self._asked, self._readers = drop, dict[str, float](), Counter[str]()

    async def ask(self, session: str) -> None:
        """Results come of requests alone: so this is when those are dropped that nobody reads."""
        now = time.monotonic()
        for other, since in list(self._asked.items()):
            if now - since > UNREAD and not self._readers[other]:
                del self._asked[other]
                await self._drop(other)
        self._asked[session] = now

    def know(self, session: str) -> bool:
        """Is there anything to read for it?"""
        return session in self._asked

    async def read(self, session: str, reading: Awaitable[None]) -> None:
        self._readers[session] += 1
        try:
            await reading
        finally:
            self._readers[session] -= 1
