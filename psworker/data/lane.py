"""A connection to one server for one thread at a time."""

import threading

from psworker.data.changes import KnownVersion
from psworker.data.exchange import Exchange
from psworker.data.transport import Transport


class Lane:
    """A connection to one server. The thread that holds `turn` talks on it; any thread may `move`, `cut` or `close` it.

    `known`: the version that came on it last, of which only changes have to come; None where versions come whole.
    """

    def __init__(self, transport: Transport, known: KnownVersion | None) -> None:
        self.turn = threading.RLock()
        self.known = known
        # `_newest` is replaced by the thread that joins when the server has moved; the holder of the turn adopts it.
        self.transport = self._newest = transport

    @property
    def exchange(self) -> Exchange:
        """The exchange that carries requests now."""
        return self.transport.exchange

    def current(self) -> Transport:
        """Return the transport to the server's newest address. Hold the `turn`."""
        newest = self._newest
        if newest is not self.transport:
            self.transport.close()
            self.transport = newest
        return newest

    def move(self, transport: Transport) -> None:
        """Adopt a transport to the server's other address. A call that waits for the former one tries there next."""
        self._newest = transport
        self.transport.close()

    def cut(self) -> None:
        """Break off the request under way."""
        self.transport.cut()

    def close(self) -> None:
        self.transport.close()
        self._newest.close()
