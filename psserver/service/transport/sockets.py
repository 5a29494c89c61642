"""Exchange over plain sockets: the same requests and answers, for workers who were invited on a stream of gRPC."""

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from psserver.service.rpc.registration import Refused, clipped
from pswire.transport import socket_handshake as meeting
from pswire.transport.framed_socket import TOKEN_BYTES, FramedSocket, LineError, Parts
from pswire.transport.frames import Message

log = logging.getLogger("ps-server")

# Each has a thread. Whoever comes later is turned away, and goes on by gRPC.
MOST_LINES = 256
# Who have not shown their invitation yet. Each has a thread, too; one more, and the first of them has to go.
MOST_STRANGERS = 64
# Between attempts to let somebody in when the system does not let us; seconds.
PAUSE = 0.2


class Caller(Protocol):
    """Who waits for an answer; a gRPC context is one."""

    def is_active(self) -> bool: ...


Serve = Callable[[Iterator[Message], Caller], Iterator[Parts]]


class LineCaller:
    """A `Caller` at the other end of a line."""

    def __init__(self, line: FramedSocket) -> None:
        self._line = line

    def is_active(self) -> bool:
        return self._line.alive


class SocketToken:
    """One line may come by this token, and lasts no longer than what it was asked on."""

    def __init__(self, lines: "SocketListener") -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._lines = lines

    def withdraw(self) -> None:
        """The line is cut, or not let in any more. A worker that is stopped keeps nothing here that way."""
        self._lines.withdraw(self.token)


class SocketListener:
    """Listens from the first time that it is asked for its name or port. Close it at the end.

    `bind`: where the port is; `port`: 0 for one that the system chooses.
    """

    def __init__(self, serve: Serve, bind: str = "127.0.0.1", port: int = 0) -> None:
        self._serve = serve
        self._bind, self._wanted = bind, port
        self._lock = threading.Lock()
        self._name: str | None = None
        self._port: int | None = None
        self._listening: list[socket.socket] = []
        self._invited: dict[bytes, FramedSocket | None] = {}
        self._open: set[FramedSocket] = set()
        # In the order in which they came.
        self._strangers: dict[FramedSocket, None] = {}
        self._ending = threading.Event()

    @property
    def name(self) -> str:
        """Of the Unix socket; empty where that is impossible."""
        with self._lock:
            if self._name is None and not self._ending.is_set():
                self._name = self._listen_here()
            return self._name or ""

    @property
    def port(self) -> int:
        """Where workers of other machines connect; 0 where that is impossible."""
        with self._lock:
            if self._port is None and not self._ending.is_set():
                try:
                    self._port = self._listen_there()
                except LineError as error:
                    log.warning("payloads of workers go by gRPC: %s", error)
                    self._port = 0
            return self._port or 0

    def open_port(self) -> None:
        """Now, rather than for the first worker that asks. Raises LineError."""
        with self._lock:
            self._port = self._listen_there()

    def invite(self) -> SocketToken:
        invitation = SocketToken(self)
        with self._lock:
            self._invited[invitation.token] = None
        return invitation

    def withdraw(self, token: bytes) -> None:
        with self._lock:
            line = self._invited.pop(token, None)
        if line is not None:
            line.cut()

    # Letting in

    def _listen_here(self) -> str:
        try:
            listening, name = meeting.listen_here()
        except LineError as error:
            log.info("workers of this machine send their requests by gRPC: %s", error)
            return ""
        self._open_door(listening)
        return name

    def _listen_there(self) -> int:
        listening = meeting.listen_at(self._bind, self._wanted)
        self._open_door(listening)
        port = int(listening.getsockname()[1])
        log.info("payloads of workers may come in at port %d", port)
        return port

    def _open_door(self, listening: socket.socket) -> None:
        self._listening.append(listening)
        threading.Thread(target=self._accept, args=(listening,), name="lines", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                if self._ending.is_set():
                    return
                # Out of descriptors, say. Whoever knocks stays at the door: asked again at once, it is the same.
                log.exception("a worker cannot be let in yet")
                self._ending.wait(PAUSE)
                continue
            self._begin(connected)

    def _begin(self, connected: socket.socket) -> None:
        try:
            if connected.family == socket.AF_UNIX:
                meeting.same_user(connected)
            line = FramedSocket(connected)
        except OSError as error:
            log.warning("a process was turned away: %s", error)
            connected.close()
            return
        if not self._enter(line):
            line.close()
            return
        try:
            threading.Thread(target=self._run, args=(line,), name="line", daemon=True).start()
        except RuntimeError as error:
            log.warning("a worker was turned away: %s", error)
            self._end(line)

    def _enter(self, line: FramedSocket) -> bool:
        """Strangers who say nothing must not keep out who is invited: those are heard at once."""
        with self._lock:
            if self._ending.is_set():
                return False
            if len(self._strangers) >= MOST_STRANGERS:
                first = next(iter(self._strangers))
                del self._strangers[first]
                first.cut()
            self._strangers[line] = None
            return True

    # One line

    def _run(self, line: FramedSocket) -> None:
        try:
            if self._expected(line):
                self._answer(line)
        except LineError as error:
            log.info("a line to a worker is broken: %s", error)
        finally:
            self._end(line)

    def _expected(self, line: FramedSocket) -> bool:
        """Whoever comes says first which invitation it has. Nothing else is heard from a stranger."""
        token = line.first(most=TOKEN_BYTES)
        with self._lock:
            welcome = line in self._strangers and len(self._open) < MOST_LINES
            if not welcome or token is None or self._invited.get(token, line) is not None:
                return False
            self._invited[token] = line
            del self._strangers[line]
            self._open.add(line)
        line.send([])
        return True

    def _end(self, line: FramedSocket) -> None:
        with self._lock:
            self._strangers.pop(line, None)
            self._open.discard(line)
        line.close()

    def _answer(self, line: FramedSocket) -> None:
        refusal = self._exchanged(line)
        if refusal is not None:
            line.send([clipped(refusal.message).encode()], int(refusal.code.value[0]))
            line.hear_out()

    def _exchanged(self, line: FramedSocket) -> Refused | None:
        """Until the line is over; or why it is to be ended."""
        try:
            for reply in self._serve(_messages(line), LineCaller(line)):
                line.send(reply)
        except Refused as refused:
            return refused
        except LineError:
            raise
        except Exception as error:
            # As gRPC does with what a method raises.
            log.exception("an exchange failed")
            return Refused(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        return None

    def close(self) -> None:
        """Nobody is let in any more, and whoever is there is cut off."""
        with self._lock:
            self._ending.set()
            listening, opened = list(self._listening), [*self._strangers, *self._open]
        for door in listening:
            # Closing alone would leave `accept` waiting.
            door.shutdown(socket.SHUT_RDWR)
            door.close()
        for line in opened:
            line.cut()


def _messages(line: FramedSocket) -> Iterator[Message]:
    while (frame := line.receive()) is not None:
        yield frame[0]
