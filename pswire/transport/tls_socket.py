"""TLS on a socket, with the socket methods that the data connection uses.

Replaces `ssl.SSLSocket`, whose `sendall` refuses MSG_MORE, whose `shutdown` drops TLS so that the next reader gets
ciphertext, and whose read returns one record (at most 16 KiB) with a system call or two for each. Here TLS works in
memory: the plain socket carries ciphertext in pieces of any size, and is what ends.

TLS may hold received data that the system does not know of: `waiting` tells. A loop that waits for the socket must
check it first.
"""

import socket
import ssl
import threading
from contextlib import suppress
from typing import Any, Final

from pswire import running

Data = bytes | bytearray | memoryview

# Ciphertext received at once, and cleartext encrypted at once: both stay in a processor's cache.
RECEIVED: Final = 2**17
SENT: Final = 2**17


class _Memory(threading.local):
    """A thread's receive buffer: its contents move to TLS's own memory before the thread receives again."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVED))


_memory = _Memory()


class TlsSocket:
    """A TLS connection. One thread at a time uses it, except `fileno` and `shutdown`. Blocks as its socket does.

    Every method raises OSError as a socket does, including ssl.SSLError for invalid TLS or an untrusted certificate.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        """`host`: the server to connect to; None at the server's end."""
        self._socket = connected
        self.family = connected.family
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, host is None, host)
        # Encrypted, and not accepted by the system yet.
        self._unsent = memoryview(b"")
        # The number of bytes of the data last given to `send` that are encrypted.
        self._begun = 0
        # True if everything received has been read.
        self._dry = True
        # When everything to be received must be here; monotonic clock.
        self._deadline: float | None = None

    @property
    def names(self) -> list[str]:
        """The URIs in the other end's certificate; none without one. After the handshake."""
        shown: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return [str(name) for kind, name in shown if kind == "URI"]

    @property
    def waiting(self) -> bool:
        """True if `recv_into` may have data although the system has none."""
        return not self._dry

    def shake(self) -> bool:
        """Continue the handshake. Return True when it is over; False only on a non-blocking socket.

        Raises ssl.SSLError.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                try:
                    more = self._more()
                except BlockingIOError:
                    return False
                if not more:
                    raise ConnectionResetError("the other end is gone") from None
                continue
            except ssl.SSLError:
                # Send the alert, which tells the other end the reason.
                with suppress(OSError):
                    self._flush()
                raise
            self._flush()
            self._dry = not self._incoming.pending
            return True

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive at least one byte, and as much as has arrived; 0 at the end of the stream."""
        view, filled = memoryview(buffer), 0
        while filled < len(view):
            if self._dry:
                if filled or not self._more():
                    break
                self._dry = False
            try:
                count: int = self._tls.read(len(view) - filled, view[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                # Only a part of a record has arrived.
                self._dry = True
                continue
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                count = 0
            if not count:
                break
            filled += count
            self._dry = not (self._incoming.pending or self._tls.pending())
        if self._outgoing.pending:
            self._answer()
        return filled

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.recv_into(buffer)])

    def send(self, data: Data, flags: int = 0) -> int:
        """Send as a socket does. After BlockingIOError, call again with the same data, because TLS has begun it.

        With any flag (MSG_MORE) the data may stay here until more is sent.
        """
        if not self._begun:
            self._begun = self._tls.write(memoryview(data)[:SENT])
        if not flags:
            self._flush()
        sent, self._begun = self._begun, 0
        return sent

    def sendall(self, data: Data, flags: int = 0) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view, flags) :]

    def _more(self) -> bool:
        """Receive ciphertext. Return False if the other end has closed."""
        if self._deadline is not None:
            left = self._deadline - running.now()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
        count = self._socket.recv_into(_memory.view)
        if count:
            self._incoming.write(_memory.view[:count])
        else:
            self._incoming.write_eof()
        return bool(count)

    def _answer(self) -> None:
        """Send TLS's own answers to messages of the other end, which a flood must not make pile up."""
        with suppress(BlockingIOError):
            self._flush()
        if len(self._unsent) + self._outgoing.pending > 2 * SENT:
            raise ConnectionResetError("the other end takes no answers")

    def _flush(self) -> None:
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    # Methods of the plain socket

    @property
    def plain(self) -> socket.socket:
        """The plain socket, for inspection."""
        return self._socket

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._deadline = None
        self._socket.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        """Limit the time of all waiting from now on, however many pieces arrive; None: no limit."""
        self._deadline = None if seconds is None else running.now() + seconds
        self._socket.settimeout(seconds)

    def getsockopt(self, level: int, name: int) -> int:
        return self._socket.getsockopt(level, name)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._socket.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """Shut down the plain socket, without TLS's closure alert, as every message has its length. Thread-safe."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close for good, and free TLS's memory (about 300 KiB) at once, even if references to this socket remain."""
        self._socket.close()
        self._dry = True
        if hasattr(self, "_tls"):
            del self._tls, self._incoming, self._outgoing
