"""Messages over a plain socket: a stream of an RPC without HTTP/2 around it.

A round trip of a small message takes a tenth of what gRPC's takes, and a
large one is copied half as often. A line is an addition to a stream of gRPC,
by which the server says how to get it: where it listens (a Unix socket for
its own machine, a port for others), and a token, good for one line. The
token is the first frame; an empty one in return is the welcome.

Each frame is its length and a status code of gRPC, 0 for a message of the
stream. Any other code ends the stream; the frame then holds the reason in
UTF-8. A Unix socket's name is abstract: no file is left behind, and another
network namespace does not see it.
"""

import io
import os
import secrets
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

# The pieces that a message is made of.
Parts = Sequence[bytes | memoryview]

# A chunk with its headers fits well; nobody makes the other side take more at once.
FRAME_BYTES: Final = 8 * 2**20
TOKEN_BYTES: Final = 16
# How long either end waits for the other's first frame, seconds.
INTRODUCTION: Final = 5.0
_HEAD: Final = struct.Struct("<IB")
# From here on a frame is sent in two pieces rather than copied behind its head, and received
# into memory that is used again.
_LARGE: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


class LineError(OSError):
    """There is no line, or it is broken: the text says why."""


class Line:
    """One end of a stream. One thread receives and sends; any thread may `cut`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = cast(io.BufferedReader, connected.makefile("rb", _LARGE))
        self._buffer = bytearray()

    def send(self, parts: Parts, code: int = 0) -> None:
        """Raises LineError when nobody is there any more, or for a message that is too long."""
        length = sum(map(len, parts))
        if length > FRAME_BYTES:
            raise LineError(f"expected a message of at most {FRAME_BYTES} bytes, got {length}")
        head = _HEAD.pack(length, code)
        try:
            if length < _LARGE:
                self._socket.sendall(b"".join((head, *parts)))
            else:
                # The last part is the payload: everything before it is some hundred bytes.
                *few, payload = parts
                self._socket.sendall(b"".join((head, *few)), socket.MSG_MORE)
                self._socket.sendall(payload)
        except OSError as error:
            raise LineError(f"the other end is gone: {error.strerror}") from error

    def receive(self, most: int = FRAME_BYTES) -> tuple[bytes | memoryview, int] | None:
        """The next frame and its code; None when the stream is over. Raises LineError for what is no frame.

        A large frame lies in memory that the next one overwrites.
        """
        try:
            head = self._reader.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            length, code = _HEAD.unpack(head)
            if length > most:
                raise LineError(f"expected a frame of at most {most} bytes, got one of {length}")
            message = self._reader.read(length) if length < _LARGE else self._large(length)
        except LineError:
            raise
        except (OSError, ValueError):
            # ValueError: closed here, by another thread.
            return None
        return (message, code) if len(message) == length else None

    def _large(self, length: int) -> memoryview:
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        view = memoryview(self._buffer)[:length]
        return view[: self._reader.readinto(view)]

    @contextmanager
    def introduction(self) -> Iterator[None]:
        """Inside, nobody is waited for longer than a moment."""
        self._socket.settimeout(INTRODUCTION)
        yield
        self._socket.settimeout(None)

    @property
    def alive(self) -> bool:
        """The other end has neither closed nor died."""
        watch = select.poll()
        try:
            watch.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return False
        return not watch.poll(0)

    def cut(self) -> None:
        """End the stream for both ends; who waits in `receive` is told. From any thread, any number of times."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other end was faster.
            return

    def close(self) -> None:
        """From any thread; whoever is receiving is told first."""
        self.cut()
        self._reader.close()
        self._socket.close()


# The server's side


def listen_here() -> tuple[socket.socket, str]:
    """A listening Unix socket and its unguessable name. Raises LineError where there are no such sockets."""
    name = f"pswire-{secrets.token_hex(16)}"
    listening = _unix()
    try:
        listening.bind(f"\0{name}")
        listening.listen()
    except OSError as error:
        listening.close()
        raise LineError(f"cannot listen on a Unix socket: {error.strerror}") from error
    return listening, name


def listen_at(host: str, port: int) -> socket.socket:
    """A listening socket for other machines; port 0: one that is free. Raises LineError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(place[:2], family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise LineError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def same_user(connected: socket.socket) -> None:
    """Raises LineError when the other end of a Unix socket belongs to another user."""
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.geteuid():
        raise LineError(f"expected a process of user {os.geteuid()}, got one of user {user}")


# The worker's side


def connect_here(name: str, token: bytes) -> Line:
    """To the process of this machine that listens under `name`.

    Raises LineError when it cannot be reached, is not of this user, or does not expect `token`.
    """
    made = _unix()
    try:
        made.connect(f"\0{name}")
        same_user(made)
    except LineError:
        made.close()
        raise
    except OSError as error:
        made.close()
        raise LineError(f"no line to {name}: {error.strerror}") from error
    return _introduced(made, token)


def connect_to(host: str, port: int, token: bytes) -> Line:
    """To the process that listens there. Raises LineError as `connect_here`."""
    try:
        made = socket.create_connection((host, port), timeout=INTRODUCTION)
    except OSError as error:
        raise LineError(f"no line to {host}:{port}: {error.strerror or error}") from error
    return _introduced(made, token)


def _introduced(connected: socket.socket, token: bytes) -> Line:
    line = Line(connected)
    welcome = None
    try:
        with line.introduction():
            line.send([token])
            welcome = line.receive(most=0)
    finally:
        if welcome is None:
            line.close()
    if welcome is None:
        raise LineError("the server did not let this line in")
    return line


def _unix() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        raise LineError(f"this system has no Unix sockets: {error}") from error
