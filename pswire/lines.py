"""Messages over a Unix socket, between processes of one machine: a stream of an RPC without HTTP/2 around it.

A round trip of a small message takes a tenth of what gRPC's takes. Where
payloads lie in shared memory, that is most of a small model's step.

Each frame is its length and a status code of gRPC, 0 for a message of the
stream. Any other code ends the stream; the frame then holds the reason in
UTF-8. The socket's name is abstract: no file is left behind, and another
network namespace does not see it.
"""

import os
import secrets
import select
import socket
import struct
from typing import Final

# A chunk with its headers fits well; nobody makes the other side take more at once.
FRAME_BYTES: Final = 8 * 2**20
_HEAD: Final = struct.Struct("<IB")
# From here on a frame is sent in two pieces rather than copied behind its head.
_COPIED: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


class LineError(OSError):
    """There is no line, or it is broken: the text says why."""


class Line:
    """One end of a stream. One thread receives and sends; any thread may `cut`."""

    def __init__(self, connected: socket.socket) -> None:
        """Raises LineError when the other end belongs to another user."""
        _, user, _ = _CREDENTIALS.unpack(
            connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.geteuid():
            raise LineError(f"expected a process of user {os.geteuid()}, got one of user {user}")
        self._socket = connected
        self._reader = connected.makefile("rb", 1 << 16)

    def send(self, message: bytes, code: int = 0) -> None:
        """Raises LineError when nobody is there any more, or for a message that is too long."""
        if len(message) > FRAME_BYTES:
            raise LineError(f"expected a message of at most {FRAME_BYTES} bytes, got {len(message)}")
        head = _HEAD.pack(len(message), code)
        try:
            if len(message) < _COPIED:
                self._socket.sendall(head + message)
            else:
                self._socket.sendall(head)
                self._socket.sendall(message)
        except OSError as error:
            raise LineError(f"the other end is gone: {error.strerror}") from error

    def receive(self) -> tuple[bytes, int] | None:
        """The next frame and its code; None when the stream is over. Raises LineError for what is no frame."""
        try:
            head = self._reader.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            length, code = _HEAD.unpack(head)
            if length > FRAME_BYTES:
                raise LineError(f"expected a frame of at most {FRAME_BYTES} bytes, got one of {length}")
            message = self._reader.read(length)
        except LineError:
            raise
        except (OSError, ValueError):
            # ValueError: closed here, by another thread.
            return None
        return (message, code) if len(message) == length else None

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


def listen() -> tuple[socket.socket, str]:
    """A listening socket and its unguessable name. Raises LineError where there are no such sockets."""
    name = f"pswire-{secrets.token_hex(16)}"
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        raise LineError(f"this system has no Unix sockets: {error}") from error
    try:
        listening.bind(f"\0{name}")
        listening.listen()
    except OSError as error:
        listening.close()
        raise LineError(f"cannot listen on a Unix socket: {error.strerror}") from error
    return listening, name


def connect(name: str) -> Line:
    """To the process that listens under `name`. Raises LineError when it cannot be reached, or is not of this user."""
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        raise LineError(f"this system has no Unix sockets: {error}") from error
    try:
        made.connect(f"\0{name}")
        return Line(made)
    except LineError:
        made.close()
        raise
    except OSError as error:
        made.close()
        raise LineError(f"no line to {name}: {error.strerror}") from error
