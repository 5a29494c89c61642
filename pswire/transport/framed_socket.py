"""Messages over a plain socket: a stream of an RPC without HTTP/2 around it.

A round trip of a small message takes a tenth of gRPC's time, and a large one is copied half as often. The socket
supplements a gRPC stream, on which the server says how to connect: where it listens (a Unix socket for its own machine,
a port for others), and a token that is valid for one connection. The token is the first frame; an empty frame in return
accepts it.

Each frame is its length and a gRPC status code, which is 0 for a message of the stream. Any other code ends the stream;
the frame then holds the reason in UTF-8. For connecting see `pswire.transport.socket_handshake`.
"""

import math
import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from typing import Final

from pswire import running
from pswire.transport.tls_socket import TlsSocket

# A socket that carries frames.
Carrier = socket.socket | TlsSocket
# The pieces of a message.
Parts = Sequence[bytes | memoryview]

# A chunk of 4 MiB with its headers. Neither end makes the other accept more at once.
FRAME_BYTES: Final = 4 * 2**20 + 2**16
TOKEN_BYTES: Final = 16
# Seconds that either end waits for the other's first frame.
HANDSHAKE_TIMEOUT: Final = 5.0
HEAD: Final = struct.Struct("<IB")
# Bytes received at once before the length of a frame is known: what it holds of a large one has to be copied.
FIRST: Final = 1 << 12
# A frame from this size on is sent in two pieces instead of being copied behind its head, and received into a reused
# buffer.
LARGE: Final = 1 << 16
# A connection is idle while a gradient is computed, and routers forget connections that are idle for minutes. TCP
# itself would then wait a quarter of an hour for an answer, and gRPC's pings use another connection. Idle seconds,
# interval in seconds, and number of unanswered probes.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# Bytes that one process leaves in a Unix socket without waiting for the other: keys and rows of a batch, which are no
# part of shared memory. With the system's 208 KiB both processes wake each other several times for a message. The
# system may give less (net.core.wmem_max).
ROOM: Final = 2**20
# More data follows at once. Not every system has this flag.
MORE: Final = getattr(socket, "MSG_MORE", 0)


# Fields of Linux' struct tcp_info: unanswered retransmissions and probes at bytes 2 and 3; milliseconds since the last
# data and the last acknowledgement at bytes 52 and 56.
_TCP_INFO: Final = struct.Struct("<2xBB48xII")


class SocketError(OSError):
    """There is no connection, or it is broken. The text says why."""


def keep_alive(connected: Carrier) -> None:
    """Configure TCP: send small messages at once, and keep the connection known to routers. Give a Unix socket room."""
    if connected.family == socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    else:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class FramedSocket:
    """One end of a stream. One thread receives and sends; any thread may `cut` and `close`.

    `_guard` protects the count of users and the closed flag; everything else belongs to the one thread.
    """

    def __init__(self, connected: Carrier) -> None:
        self._socket = connected
        keep_alive(connected)
        # Received and not read yet: bytes `_start` to `_end`. Python's buffered reader takes twice the time for a small
        # frame.
        self._come = memoryview(bytearray(LARGE))
        self._start = self._end = 0
        # Holds the last large frame.
        self._buffer = bytearray()
        # Reentrant, because a signal handler may close the socket it interrupts.
        self._guard = threading.RLock()
        # The last user closes the descriptor, whose number is soon reused for another connection.
        self._users = 0
        self._closed = False

    def first(self, most: int) -> bytes | None:
        """Return the first frame; None if none comes within `HANDSHAKE_TIMEOUT`. Call before any other receive.

        Raises SocketError for a frame of more than `most` bytes, and if TLS gives a reason.
        """
        deadline = running.now() + HANDSHAKE_TIMEOUT
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
            # The other end checks the certificate after the handshake is over for this end.
            raise SocketError(f"TLS ends the connection: {error.reason}") from error
        except OSError:
            return None
        return message if len(message) == length else None

    def _exactly(self, size: int, deadline: float) -> bytes:
        """Receive this many bytes, or fewer at the end of the stream. Raises TimeoutError."""
        data = b""
        while len(data) < size:
            # One deadline for all bytes, not one for each.
            left = deadline - running.now()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            piece = self._socket.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data

    def send(self, parts: Parts, code: int = 0) -> None:
        """Send a frame. Raises SocketError if the other end is gone or the message is too long."""
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
                # The last part is the payload; the others have some hundred bytes.
                *few, payload = parts
                self._socket.sendall(b"".join((head, *few)), MORE)
                self._socket.sendall(payload)
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
        finally:
            self._leave()

    def receive(self) -> tuple[bytes | memoryview, int] | None:
        """Return the next frame and its code; None at the end of the stream. Raises SocketError for an invalid frame.

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
        """Receive until this many bytes (at most `LARGE`) are here; False if the stream ends before."""
        come, held = self._come, self._end - self._start
        if self._start:
            come[:held] = come[self._start : self._end]
            self._start, self._end = 0, held
        while self._end < size:
            count = self._socket.recv_into(come[self._end : max(size, FIRST)])
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
        """Receive a large frame. Memory grows with what has come, not with what a peer announces."""
        received = min(length, self._end - self._start)
        if len(self._buffer) < received:
            self._buffer = bytearray(min(length, 4 * LARGE))
        self._buffer[:received] = self._come[self._start : self._start + received]
        self._start += received
        while received < length:
            if len(self._buffer) < length and received == len(self._buffer):
                # The buffer is replaced, never resized, because a view of the last frame may be in use.
                larger = bytearray(min(length, max(2 * received, 4 * LARGE)))
                larger[:received] = self._buffer[:received]
                self._buffer = larger
            count = self._socket.recv_into(memoryview(self._buffer)[received:length])
            if not count:
                return None
            received += count
        return memoryview(self._buffer)[:length]

    @property
    def alive(self) -> bool:
        """True if the other end has neither closed nor died."""
        watch = select.poll()
        try:
            watch.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return False
        return not watch.poll(0)

    def probe(self, seconds: float) -> None:
        """Make the system probe an idle peer often enough for `silent` to answer within `seconds`."""
        if self._socket.family == socket.AF_UNIX:
            return
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
            if hasattr(socket, name):
                value = max(1, math.ceil(seconds / 3))
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def silent(self, seconds: float) -> bool:
        """Return True if the other end's system has acknowledged nothing for this long, despite several probes.

        It is gone, or something on the way drops packets. False if that cannot be known. Thread-safe.
        """
        with self._guard:
            if self._closed or self._socket.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
                return False
            try:
                plain = self._socket.plain if isinstance(self._socket, TlsSocket) else self._socket
                info = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            except OSError:
                return False
        if len(info) < _TCP_INFO.size:
            return False
        retransmitted, probed, data, acknowledged = _TCP_INFO.unpack(info)
        return bool(max(retransmitted, probed) > 1 and min(data, acknowledged) > 1000 * seconds)

    def detach(self) -> Carrier:
        """Return the socket, which is the caller's from now on. Only behind `first`, and before any other receive."""
        self._closed = True
        return self._socket

    def cut(self) -> None:
        """End the stream for both ends; a waiting `receive` or `send` returns or raises. Repeatable."""
        with self._guard:
            if self._socket.fileno() < 0:
                return
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other end has closed already.
                return

    def close(self) -> None:
        """Cut the stream, and close the descriptor when no thread receives or sends any more."""
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
