"""A connection over TLS: its handshake, and decrypted bytes that the kernel knows nothing of."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from psserver.service.net.bulk import Buffers
from psserver.service.net.connection import SocketConnection
from psserver.service.pools import Pool
from pswire.transport.framed_socket import SocketError
from pswire.transport.tls_socket import TlsSocket

_HANDSHAKE: Final = "handshake"


class TlsConnection(SocketConnection):
    """A `SocketConnection` whose task awaits `handshake` first.

    The loop watches the plain socket. Bytes that TLS still holds after a turn are read in a later turn, so that other
    connections come first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        context: ssl.SSLContext,
        buffers: Buffers,
        threads: Pool,
        address: str,
        patience: Callable[[int], float],
    ) -> None:
        self._tls = TlsSocket(connected, context)
        self._reading = self._scheduled = False
        super().__init__(loop, self._tls, buffers, threads, address, patience)

    # The other end, as a call's context says it (`psserver.service.guard.authorization.Context`).

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {"x509_subject_alternative_name": [name.encode() for name in self._tls.names]}

    def invocation_metadata(self) -> Any:
        return ()

    def peer(self) -> str:
        return f"ipv4:{self.caller.address}:0"

    async def handshake(self) -> None:
        """Shake hands. Raises SocketError if the peer is not trusted or speaks no TLS."""
        try:
            shaken = False
            while not shaken:
                # The other end speaks first.
                self._loop.add_reader(self._descriptor, self._shaken)
                await self._wait_for(_HANDSHAKE)
                # Otherwise the loop would call `_shaken` until the bytes are read.
                self._loop.remove_reader(self._descriptor)
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
        """Schedule another read if TLS holds decrypted bytes."""
        if self._tls.waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._read_held)

    def _read_held(self) -> None:
        self._scheduled = False
        if self._reading and self._tls.waiting:
            self._readable()
