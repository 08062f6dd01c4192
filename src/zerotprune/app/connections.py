"""Connections that do not finish their request in time are closed: uvicorn would keep them."""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from typing import Any

#: seconds for the head of a request; its body has as many, see `firewall`
PATIENCE = 20.0


def impatient(protocol: Any) -> Any:
    """uvicorn's class for a connection, with a limit on the time until a request has begun."""

    class Impatient(protocol):  # type: ignore[misc]
        _limit: TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """A request is under way once its head is whole."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._limit is None:
                self._limit = get_running_loop().call_later(PATIENCE, self._give_up)

        def _forget(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

        def _give_up(self) -> None:
            self._limit = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Impatient
