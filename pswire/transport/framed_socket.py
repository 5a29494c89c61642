"""Messages over a plain socket: a stream of an RPC without HTTP/2 around it.

A round trip of a small message takes a tenth of gRPC's time, and a large one is copied half as often. A server says
over gRPC where it listens: on a Unix socket for its own machine, on a port for others. The first frame proves who
connects; a frame in return accepts it.

Each frame is its length and a gRPC status code, which is 0 for a message of the stream. Any other code ends the stream;
the frame then holds the reason in UTF-8. For connecting see `pswire.transport.socket_handshake`.
"""

import math
import os
import socket
import ssl
import struct
import threading
from array import array
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
# Seconds that either end waits for the other's first frame.
HANDSHAKE_TIMEOUT: Final = 5.0
HEAD: Final = struct.Struct("<IB")
# A time, as the system takes it.
_TIMEVAL: Final = struct.Struct("ll")
# Bytes received at once before the length of a frame is known: what it holds of a large one has to be copied.
FIRST: Final = 1 << 12
# A frame from this size on is sent in two pieces instead of being copied behind its head, and received into a reused
# buffer.
LARGE: Final = 1 << 16
# A connection is idle while a gradient is computed, and routers forget connections that are idle for minutes. Seconds
# without an acknowledgement after which a connection counts as dead, unless a worker_timeout is known: TCP itself would
# wait a quarter of an hour.
DEAD: Final = 50.0
# Bytes that one process leaves in a Unix socket without waiting for the other: keys and rows of a batch, which are no
# part of shared memory. With the system's 208 KiB both processes wake each other several times for a message. The
# system may give less (net.core.wmem_max).
ROOM: Final = 2**20
# Descriptors of shared memory that are here and not taken, at most.
DESCRIPTORS: Final = 8
_DESCRIPTORS_SPACE: Final = socket.CMSG_SPACE(4 * DESCRIPTORS)
# More data follows at once. Not every system has this flag.
MORE: Final = getattr(socket, "MSG_MORE", 0)


class SocketError(OSError):
    """There is no connection, or it is broken. The text says why."""


class Stuck(SocketError):
    """Nothing was received or taken for as long as `FramedSocket.limit` says."""


def keep_alive(connected: Carrier, dead: float = DEAD) -> None:
    """Configure TCP: send small messages at once, keep the connection known to routers, and end it after `dead` seconds
    without an acknowledgement. Give a Unix socket room."""
    if connected.family == socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = max(1, math.ceil(dead / 3))
    options = {"TCP_KEEPIDLE": probes, "TCP_KEEPINTVL": probes, "TCP_USER_TIMEOUT": math.ceil(1000 * dead)}
    for name, value in options.items():
        # Not every system has all of them.
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class FramedSocket:
    """One end of a stream. One thread receives and sends; any thread may `cut` and `close`.

    `_guard` protects the count of users and the closed flag; everything else belongs to the one thread.
    """

    def __init__(self, connected: Carrier, dead: float = DEAD) -> None:
        """`dead`: as of `keep_alive`."""
        self._socket = connected
        keep_alive(connected, dead)
        # Received and not read yet: bytes `_start` to `_end`. Python's buffered reader takes twice the time for a small
        # frame.
        self._come = memoryview(bytearray(LARGE))
        self._start = self._end = 0
        # Holds the last large frame.
        self._buffer = bytearray()
        # Came with frames, and nobody has taken them yet.
        self._descriptors: list[int] = []
        # Reentrant, because a signal handler may close the socket it interrupts.
        self._guard = threading.RLock()
        # The last user closes the descriptor, whose number is soon reused for another connection.
        self._users = 0
        self._closed = False

    def first(self, most: int, seconds: float = HANDSHAKE_TIMEOUT) -> bytes | None:
        """Return the first frame; None if none comes within `seconds`. Call before any other receive.

        Raises SocketError for a frame of more than `most` bytes, for a refusal, and if TLS gives a reason.
        """
        deadline = running.now() + seconds
        try:
            if not self._fill(HEAD.size, deadline):
                return None
            length, code = HEAD.unpack_from(self._come)
            if length > most:
                raise _too_long(length, most)
            if not self._fill(HEAD.size + length, deadline):
                return None
            self._start = HEAD.size + length
            message = bytes(self._come[HEAD.size : self._start])
            self._socket.settimeout(None)
        except SocketError:
            raise
        except ssl.SSLError as error:
            # The other end checks the certificate after the handshake is over for this end.
            raise SocketError(f"TLS ends the connection: {error.reason}") from error
        except OSError:
            return None
        if code:
            raise SocketError(message.decode(errors="replace"))
        return message

    def send(self, parts: Parts, code: int = 0) -> None:
        """Send a frame. Raises SocketError if the other end is gone or the message is too long, and Stuck."""
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
        except BlockingIOError as error:
            raise Stuck("the other end takes nothing") from error
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
        finally:
            self._leave()

    def receive(self) -> tuple[bytes | memoryview, int] | None:
        """Return the next frame and its code; None at the end of the stream.

        Raises SocketError for an invalid frame, and Stuck.

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
        except BlockingIOError as error:
            raise Stuck("the other end sends nothing") from error
        except OSError:
            return None
        finally:
            self._leave()

    def _fill(self, size: int, deadline: float | None = None) -> bool:
        """Receive until this many bytes (at most `LARGE`) are here; False if the stream ends before.

        Raises TimeoutError at the deadline, which is one for all bytes.
        """
        come, held = self._come, self._end - self._start
        if self._start:
            come[:held] = come[self._start : self._end]
            self._start, self._end = 0, held
        while self._end < size:
            if deadline is not None:
                left = deadline - running.now()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            count = self._some(come[self._end : max(size, FIRST)])
            if not count:
                return False
            self._end += count
        return True

    def _some(self, into: memoryview) -> int:
        """Receive bytes, and the descriptors that come with them."""
        connected = self._socket
        if connected.family != socket.AF_UNIX or isinstance(connected, TlsSocket):
            return connected.recv_into(into)
        count, ancillary, flags, _ = connected.recvmsg_into(
            [into], _DESCRIPTORS_SPACE, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors += array("i", data[: len(data) - len(data) % 4])
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > DESCRIPTORS:
            raise SocketError(f"expected at most {DESCRIPTORS} descriptors with a frame, got more")
        return count

    def descriptors(self, count: int) -> list[int]:
        """Return the next descriptors that came with frames; they are the caller's. Raises SocketError if fewer are
        here."""
        with self._guard:
            if len(self._descriptors) < count:
                got = len(self._descriptors)
                raise SocketError(f"expected {count} descriptors with a frame, got {got}")
            taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            return taken

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

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
    def local(self) -> bool:
        """Whether the other end is on this machine."""
        return self._socket.family == socket.AF_UNIX

    def limit(self, seconds: float) -> None:
        """Have `send` and `receive` raise Stuck if nothing moves for that long. The time in which this process is
        stopped does not count."""
        whole, part = divmod(seconds, 1)
        value = _TIMEVAL.pack(int(whole), int(1e6 * part))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._plain.setsockopt(socket.SOL_SOCKET, option, value)

    @property
    def _plain(self) -> socket.socket:
        return self._socket.plain if isinstance(self._socket, TlsSocket) else self._socket

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
            for descriptor in self.descriptors(len(self._descriptors)):
                os.close(descriptor)


def _too_long(length: int, most: int) -> SocketError:
    return SocketError(f"expected a frame of at most {most} bytes, got one of {length}")
