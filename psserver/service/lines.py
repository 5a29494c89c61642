"""Exchange for workers of this machine: the same requests and answers, over Unix sockets."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from psserver.service.rpc import Refused, clipped
from pswire.lines import Line, LineError, listen

log = logging.getLogger("ps-server")

# Each has a thread. Whoever comes later is turned away, and goes on by gRPC.
MOST_LINES = 256
# Between attempts to let somebody in when the system does not let us; seconds.
PAUSE = 0.2


class Caller(Protocol):
    """Who waits for an answer; a gRPC context is one."""

    def is_active(self) -> bool: ...


Serve = Callable[[Iterator[bytes], Caller], Iterator[bytes]]


class LineCaller:
    """A `Caller` at the other end of a line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def is_active(self) -> bool:
        return self._line.alive


class Lines:
    """Listens from the first time that it is asked for its name. Close it at the end."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._name: str | None = None
        self._listening: socket.socket | None = None
        self._open: set[Line] = set()
        self._ending = threading.Event()

    @property
    def name(self) -> str:
        """Where workers connect; empty where that is impossible."""
        with self._lock:
            if self._name is None and not self._ending.is_set():
                self._name = self._listen()
            return self._name or ""

    def _listen(self) -> str:
        try:
            self._listening, name = listen()
        except LineError as error:
            log.info("workers of this machine send their requests by gRPC: %s", error)
            return ""
        threading.Thread(target=self._accept, args=(self._listening,), name="lines", daemon=True).start()
        return name

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                if self._ending.is_set():
                    return
                # Out of descriptors, say. Whoever knocks stays at the door: asked again at once, it is the same.
                log.exception("a worker of this machine cannot be let in yet")
                self._ending.wait(PAUSE)
                continue
            self._begin(connected)

    def _begin(self, connected: socket.socket) -> None:
        try:
            line = Line(connected)
        except LineError as error:
            log.warning("a process of this machine was turned away: %s", error)
            connected.close()
            return
        with self._lock:
            welcome = not self._ending.is_set() and len(self._open) < MOST_LINES
            if welcome:
                self._open.add(line)
        if not welcome:
            line.close()
            return
        try:
            threading.Thread(target=self._run, args=(line,), name="line", daemon=True).start()
        except RuntimeError as error:
            log.warning("a worker of this machine was turned away: %s", error)
            self._end(line)

    def _run(self, line: Line) -> None:
        try:
            self._answer(line)
        except LineError as error:
            log.info("a line to a worker is broken: %s", error)
        finally:
            self._end(line)

    def _end(self, line: Line) -> None:
        with self._lock:
            self._open.discard(line)
        line.close()

    def _answer(self, line: Line) -> None:
        try:
            for reply in self._serve(_messages(line), LineCaller(line)):
                line.send(reply)
        except Refused as refused:
            line.send(clipped(refused.message).encode(), int(refused.code.value[0]))
        except LineError:
            raise
        except Exception as error:
            # As gRPC does with what a method raises.
            log.exception("an exchange failed")
            line.send(
                clipped(f"{type(error).__name__}: {error}").encode(), int(grpc.StatusCode.UNKNOWN.value[0])
            )

    def close(self) -> None:
        """Nobody is let in any more, and whoever is there is cut off."""
        with self._lock:
            self._ending.set()
            listening, lines = self._listening, list(self._open)
        if listening is not None:
            # Closing alone would leave `accept` waiting.
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        for line in lines:
            line.cut()


def _messages(line: Line) -> Iterator[bytes]:
    while (frame := line.receive()) is not None:
        yield frame[0]
