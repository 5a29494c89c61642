"""TLS on a socket, with those methods of a socket that the line uses.

Not `ssl.SSLSocket`. Of that one `sendall` refuses MSG_MORE, `shutdown` drops TLS so that whoever reads next is given
ciphertext, and one read gives one record, 16 KiB at most, with a system call or two for each. Here TLS works in
memory: the plain socket carries ciphertext, in pieces as large as one likes, and is what ends.

What was received may hold more than was asked for, which the system knows nothing of: `waiting` tells. A
loop that waits for the socket must look at it first.
"""

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Final

from pswire.security.identity import peer_fingerprint

Data = bytes | bytearray | memoryview

# Ciphertext that is received at once, and cleartext that is encrypted at once: both stay in a processor's cache.
RECEIVED: Final = 2**17
SENT: Final = 2**17


class _Memory(threading.local):
    """What a thread receives into: it is in TLS's own memory before the thread receives again."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVED))


_memory = _Memory()


class TlsSocket:
    """One thread at a time uses it, except `fileno` and `shutdown`. Blocks, or not, as the socket does.

    Every method raises OSError as a socket does; ssl.SSLError, which is one, for what is no TLS or not believed.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        """`host`: of the server that is meant; None at the server's end."""
        self._socket = connected
        self.family = connected.family
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, host is None, host)
        # Encrypted, and not taken by the system yet.
        self._unsent = memoryview(b"")
        # Of what `send` was given last, so many bytes are encrypted.
        self._begun = 0
        # All that was received is used.
        self._dry = True
        # All that is received must be here by then; by the monotonic clock.
        self._deadline: float | None = None

    @property
    def fingerprint(self) -> bytes:
        """Of the other end's certificate; empty without one. After the handshake."""
        return peer_fingerprint(self._tls)

    @property
    def waiting(self) -> bool:
        """`recv_into` may have something although the system has nothing."""
        return not self._dry

    def shake(self) -> bool:
        """Go on with the handshake: is it over? False only where the socket does not block. Raises ssl.SSLError."""
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
                # It holds the reason, for the other end.
                with suppress(OSError):
                    self._flush()
                raise
            self._flush()
            self._dry = not self._incoming.pending
            return True

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """At least one byte, and as much as was received; 0 at the end of the stream."""
        view, filled = memoryview(buffer), 0
        while filled < len(view):
            if self._dry:
                if filled or not self._more():
                    break
                self._dry = False
            try:
                count: int = self._tls.read(len(view) - filled, view[filled:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                # A part of a record is here.
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
        """As of a socket; but what TLS has begun must be ended: who is told BlockingIOError sends the same again.

        With any flag, MSG_MORE, it may stay here until more is sent.
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
        """Receive ciphertext: False when the other end has closed."""
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
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
        """TLS answers some messages of the other end by itself: a flood of them must not collect here."""
        with suppress(BlockingIOError):
            self._flush()
        if len(self._unsent) + self._outgoing.pending > 2 * SENT:
            raise ConnectionResetError("the other end takes no answers")

    def _flush(self) -> None:
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    # Of the plain socket

    @property
    def plain(self) -> socket.socket:
        """What it runs on, to be looked at."""
        return self._socket

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._deadline = None
        self._socket.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        """For all that one waits for from now on, however many pieces it comes in; None: no limit."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._socket.settimeout(seconds)

    def getsockopt(self, level: int, name: int) -> int:
        return self._socket.getsockopt(level, name)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._socket.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """Of the plain socket, without TLS's own farewell: every message says how long it is. From any thread."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """For good: what TLS holds, some 300 KiB, is given back at once, whoever still knows this socket."""
        self._socket.close()
        self._dry = True
        if hasattr(self, "_tls"):
            del self._tls, self._incoming, self._outgoing
