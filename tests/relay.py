"""A port that forwards connections to another port, records what passes, paces it, cuts a connection or goes
dead."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait

PIECE = 1 << 18
# A reset, instead of an end: what is under way is lost.
RESET = struct.pack("ii", 1, 0)
# On a slow link what is behind a large payload waits for it as in a router's queue, not in one leap.
SLOW_PIECE = 1 << 14


class Relay:
    """`up`: bytes towards the target after which a connection is cut, `down`: bytes back; `reset`: without a farewell.
    `record`: keep all that passes in `seen`. `rate`: bytes per second each way, of all connections together."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        up: int | None = None,
        down: int | None = None,
        reset: bool = False,
        record: bool = False,
        rate: float = 0.0,
    ) -> None:
        self._target, self._limits, self._reset = target, (up, down), reset
        self._record, self.seen = record, bytearray()
        # Bytes that have passed each way; when a link of that rate is free again.
        self.passed, self._free_at = [0, 0], [0.0, 0.0]
        self._rate, self._guard = rate, threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._frozen, self._thawed = False, threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._carry, args=(near,))
            self._threads.append(thread)
            thread.start()

    def _carry(self, near: socket.socket) -> None:
        with ExitStack() as stack:
            stack.enter_context(near)
            try:
                far = stack.enter_context(socket.create_connection(self._target))
            except OSError:
                # Nobody is there; the next connection tries again.
                return
            self._open |= {near, far}
            if self._rate:
                # A kernel that buffers megabytes would hide how slow the link is.
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * SLOW_PIECE)
            left: list[int | None] = list(self._limits)
            ways = ((near, far, 0), (far, near, 1))
            with suppress(OSError):
                while all(each is None or each > 0 for each in left):
                    held = [at - time.monotonic() for at in self._free_at]
                    free = [source for source, _, way in ways if held[way] <= 0]
                    ready = wait([*free, self._woken], min((each for each in held if each > 0), default=None))
                    if self._frozen:
                        self._thawed.wait()
                        return
                    for source, sink, way in ways:
                        if source in ready and not self._pass_on(source, sink, way, left):
                            return
            if self._reset:
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: int, left: list[int | None]) -> bool:
        limit = left[way]
        piece = SLOW_PIECE if self._rate else PIECE
        data = source.recv(piece if limit is None else max(1, min(piece, limit)))
        if not data:
            return False
        if self._record:
            self.seen += data
        with self._guard:
            self.passed[way] += len(data)
            if self._rate:
                self._free_at[way] = max(time.monotonic(), self._free_at[way]) + len(data) / self._rate
        sink.sendall(data)
        left[way] = None if limit is None else limit - len(data)
        return True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections; new ones are carried as before."""
        cut, self._open = self._open, set()
        for end in cut:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Forward nothing more, and close nothing until `close`, as a pulled cable does."""
        self._frozen = True
        self._wake.send(b"x")

    def close(self) -> None:
        self._thawed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._wake.close()
        self._woken.close()


@contextmanager
def relayed(target: tuple[str, int], **how: object) -> Iterator[Relay]:
    relay = Relay(target, **how)  # type: ignore[arg-type]
    try:
        yield relay
    finally:
        relay.close()
