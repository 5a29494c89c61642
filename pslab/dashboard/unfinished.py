"""Connections that send half a request: uvicorn has no deadline for one, and counts each among those that it serves."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from psserver.service.guard.limits import Strangers

# Seconds for a whole request: it has no body, and comes from a browser.
WITHIN = 5.0
# At once; one more, and the oldest is closed of the address that has the most. Others find room for their requests.
MOST = 128


def protocol() -> type[H11Protocol]:
    """For one server: its connections share one account of those that have not asked for anything."""
    unfinished: Strangers[H11Protocol] = Strangers(MOST)

    class Hurried(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._wait()
            else:
                self._came()

        def connection_lost(self, exc: Exception | None) -> None:
            self._came()
            super().connection_lost(exc)

        def _wait(self) -> None:
            """For a request. What comes meanwhile does not put off its deadline."""
            if self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(WITHIN, self.transport.close)
                address = self.client[0] if self.client else ""
                for oldest in unfinished.came(self, address):
                    oldest.transport.abort()

        def _came(self) -> None:
            unfinished.gone(self)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Hurried
