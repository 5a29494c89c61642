"""Messages over a plain socket: a stream of an RPC without HTTP/2 around it.

A round trip of a small message takes a tenth of what gRPC's takes, and a
large one is copied half as often. The socket is an addition to a gRPC stream,
on which the server says how to get it: where it listens (a Unix socket for
its own machine, a port for others), and a token, good for one connection. The
token is the first frame; an empty one in return accepts it.

Each frame is its length and a gRPC status code, 0 for a message of the
stream. Any other code ends the stream; the frame then holds the reason in
UTF-8. How the two ends connect: `pswire.transport.socket_handshake`.
"""

import math
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import Final

from pswire.transport.tls_socket import TlsSocket

# What carries frames.
Carrier = socket.socket | TlsSocket
# The pieces that a message is made of.
Parts = Sequence[bytes | memoryview]

# A chunk of 4 MiB with its headers; neither end makes the other take more at once.
FRAME_BYTES: Final = 4 * 2**20 + 2**16
TOKEN_BYTES: Final = 16
# How long either end waits for the other's first frame, seconds.
HANDSHAKE_TIMEOUT: Final = 5.0
HEAD: Final = struct.Struct("<IB")
# From here on a frame is sent in two pieces rather than copied behind its head, and received
# into memory that is used again.
LARGE: Final = 1 << 16
# A connection is idle while a gradient is computed, and a router forgets connections that are idle for minutes. Then
# TCP itself would wait a quarter of an hour for an answer: gRPC's pings use another connection. Seconds, and how many
# probes without an answer.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# The rest follows at once. Not every system has it.
MORE: Final = getattr(socket, "MSG_MORE", 0)


# Of Linux' struct tcp_info: retransmissions and probes without an answer, at bytes 2 and 3; milliseconds since data
# and since an acknowledgement came, at bytes 52 and 56.
_TCP_INFO: Final = struct.Struct("<2xBB48xII")


class SocketError(OSError):
    """There is no connection, or it is broken: the text says why."""


def keep_alive(connected: Carrier) -> None:
    """What both ends ask of TCP: small messages at once, and a connection that routers know."""
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class FramedSocket:
    """One end of a stream. One thread receives and sends; any thread may `cut` and `close`.

    `_guard` owns the count of users and whether it is closed; all else belongs to the one thread.
    """

    def __init__(self, connected: Carrier) -> None:
        self._socket = connected
        keep_alive(connected)
        # What has come and is not read yet: bytes `_start` to `_end`. A buffered reader of Python's does the same in
        # twice the time of a small frame.
        self._come = memoryview(bytearray(LARGE))
        self._start = self._end = 0
        # The last large frame.
        self._buffer = bytearray()
        # A signal handler may close what it interrupts, therefore reentrant.
        self._guard = threading.RLock()
        # The last user gives the descriptor back: its number is soon another connection's.
        self._users = 0
        self._closed = False

    def first(self, most: int) -> bytes | None:
        """The first frame; None when none comes within `HANDSHAKE_TIMEOUT`.

        Before anything else is received. Raises SocketError for one of more than `most` bytes, and where TLS says why.
        """
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT
        try:
            head = self._exactly(HEAD.size, deadline)
            if len(head) < HEAD.size:
                return None
            length, _ = HEAD.unpack(head)
            if length > most:
                raise _too_long(length, most)
            message = self._exactly(length, deadline)
            self._socket.settimeout(None)
        except SocketError:
            raise
        except ssl.SSLError as error:
            # The other end looks at a certificate when the handshake is over for this one.
            raise SocketError(f"TLS ends the connection: {error.reason}") from error
        except OSError:
            return None
        return message if len(message) == length else None

    def _exactly(self, size: int, deadline: float) -> bytes:
        """Fewer at the end of the stream. Raises TimeoutError."""
        data = b""
        while len(data) < size:
            # For all of it, not for each byte anew.
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            piece = self._socket.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data

    def send(self, parts: Parts, code: int = 0) -> None:
        """Raises SocketError when the other end is gone, or for a message that is too long."""
        length = sum(map(len, parts))
        if length > FRAME_BYTES:
            raise SocketError(f"expected a message of at most {FRAME_BYTES} bytes, got {length}")
        if not self._enter():
            raise SocketError("the connection is closed")
        head = HEAD.pack(length, code)
        try:
            if length < LARGE:
                self._socket.sendall(b"".join((head, *parts)))
            else:
                # The last part is the payload: everything before it is some hundred bytes.
                *few, payload = parts
                self._socket.sendall(b"".join((head, *few)), MORE)
                self._socket.sendall(payload)
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
        finally:
            self._leave()

    def receive(self) -> tuple[bytes | memoryview, int] | None:
        """The next frame and its code; None when the stream is over. Raises SocketError for what is no frame.

        A large frame lies in memory that the next one overwrites.
        """
        if not self._enter():
            return None
        try:
            if self._end - self._start < HEAD.size and not self._fill(HEAD.size):
                return None
            length, code = HEAD.unpack_from(self._come, self._start)
            if length > FRAME_BYTES:
                raise _too_long(length, FRAME_BYTES)
            self._start += HEAD.size
            message = self._small(length) if length < LARGE else self._large(length)
            return None if message is None else (message, code)
        except SocketError:
            raise
        except OSError:
            return None
        finally:
            self._leave()

    def _fill(self, size: int) -> bool:
        """At least so many bytes are here, of which there is room for `LARGE`; False when the stream ends before."""
        come, held = self._come, self._end - self._start
        if self._start:
            come[:held] = come[self._start : self._end]
            self._start, self._end = 0, held
        while self._end < size:
            count = self._socket.recv_into(come[self._end :])
            if not count:
                return False
            self._end += count
        return True

    def _small(self, length: int) -> bytes | None:
        if self._end - self._start < length and not self._fill(length):
            return None
        start = self._start
        self._start = end = start + length
        return bytes(self._come[start:end])

    def _large(self, length: int) -> memoryview | None:
        """Memory grows with what has come, not with what was announced: anybody can announce."""
        received = min(length, self._end - self._start)
        if len(self._buffer) < received:
            self._buffer = bytearray(min(length, 4 * LARGE))
        self._buffer[:received] = self._come[self._start : self._start + received]
        self._start += received
        while received < length:
            if len(self._buffer) < length and received == len(self._buffer):
                # A view of the last frame may be in use: a buffer is replaced, never resized.
                larger = bytearray(min(length, max(2 * received, 4 * LARGE)))
                larger[:received] = self._buffer[:received]
                self._buffer = larger
            count = self._socket.recv_into(memoryview(self._buffer)[received:length])
            if not count:
                return None
            received += count
        return memoryview(self._buffer)[:length]

    def drain(self) -> None:
        """After the last frame: read until the other end has closed. A socket that is closed with something
        unread takes back what was sent on it last."""
        if not self._enter():
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(LARGE):
                pass
        except OSError:
            # It is over already.
            return
        finally:
            self._leave()

    @property
    def alive(self) -> bool:
        """The other end has neither closed nor died."""
        watch = select.poll()
        try:
            watch.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return False
        return not watch.poll(0)

    def probe(self, seconds: float) -> None:
        """Have the system ask an idle peer for a sign of life, so often that `silent` can tell within `seconds`."""
        if self._socket.family == socket.AF_UNIX:
            return
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
            if hasattr(socket, name):
                value = max(1, math.ceil(seconds / 3))
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def silent(self, seconds: float) -> bool:
        """The other end's system has acknowledged nothing for so long, though it was asked several times: it is gone,
        or something on the way drops what is sent. False where that cannot be known. From any thread."""
        with self._guard:
            if self._closed or self._socket.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
                return False
            try:
                plain = self._socket.plain if isinstance(self._socket, TlsSocket) else self._socket
                told = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            except OSError:
                return False
        if len(told) < _TCP_INFO.size:
            return False
        retransmitted, probed, data, acknowledged = _TCP_INFO.unpack(told)
        return bool(max(retransmitted, probed) > 1 and min(data, acknowledged) > 1000 * seconds)

    def cut(self) -> None:
        """End the stream for both ends; a `receive` or `send` that waits returns or raises. Any number of times."""
        with self._guard:
            if self._socket.fileno() < 0:
                return
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other end was faster.
                return

    def close(self) -> None:
        """As `cut`; the descriptor is given back when no thread receives or sends any more."""
        with self._guard:
            self.cut()
            self._closed = True
            self._give_back()

    def _enter(self) -> bool:
        with self._guard:
            if self._closed:
                return False
            self._users += 1
        return True

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            if self._closed:
                self._give_back()

    def _give_back(self) -> None:
        if not self._users:
            self._socket.close()
            self._buffer = bytearray()


def _too_long(length: int, most: int) -> SocketError:
    return SocketError(f"expected a frame of at most {most} bytes, got one of {length}")
