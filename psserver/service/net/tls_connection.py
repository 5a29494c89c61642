"""A connection over TLS: a handshake in turns of the loop, and bytes that are here without the system's knowledge."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from psserver.service.net.connection import Connection
from psserver.service.net.loop import HeavyWork, parked
from psserver.service.net.payloads import Buffers
from pswire.transport.framed_socket import SocketError
from pswire.transport.tls_socket import TlsSocket

_HANDSHAKE: Final = "handshake"


class TlsConnection(Connection):
    """As `Connection`; the coroutine awaits `handshake` before all else.

    The loop waits for the plain socket. What TLS still holds when a turn is over comes next turn, others first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        context: ssl.SSLContext,
        buffers: Buffers,
        threads: HeavyWork,
    ) -> None:
        self._tls = TlsSocket(connected, context)
        self._reading = self._coming = False
        super().__init__(loop, self._tls, buffers, threads)

    @property
    def fingerprint(self) -> bytes:
        return self._tls.fingerprint

    async def handshake(self, turn: Callable[[], Awaitable[None]]) -> None:
        """`turn`: until the loop has time for a stranger. Raises SocketError for a peer that speaks no TLS,
        or is not believed."""
        try:
            shaken = False
            while not shaken:
                # The other end speaks first.
                self._loop.add_reader(self._descriptor, self._shaken)
                self._waits_for = _HANDSHAKE
                await parked()
                # It would be told again and again.
                self._loop.remove_reader(self._descriptor)
                await turn()
                shaken = self._tls.shake()
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            raise SocketError(f"no TLS with it: {reason or error}") from error
        finally:
            self._listen()

    def _shaken(self) -> None:
        if self._waits_for == _HANDSHAKE:
            self._give(None)

    def _listen(self) -> None:
        self._reading = True
        super()._listen()
        self._look_again()

    def _stop_reading(self) -> None:
        self._reading = False
        super()._stop_reading()

    def _readable(self) -> None:
        super()._readable()
        self._look_again()

    def _fill(self) -> None:
        super()._fill()
        self._look_again()

    def _look_again(self) -> None:
        if self._tls.waiting and not self._coming:
            self._coming = True
            self._loop.call_soon(self._come)

    def _come(self) -> None:
        self._coming = False
        if self._reading and self._tls.waiting:
            self._readable()
