"""A port that forwards connections to another port, records what passes, cuts a connection or goes dead."""

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

PIECE = 1 << 18
# A reset, instead of an end: what is under way is lost.
RESET = struct.pack("ii", 1, 0)


class Relay:
    """`up`: bytes towards the target after which a connection is cut, `down`: bytes back; `reset`: without a farewell.
    `record`: keep all that passes in `seen`."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        up: int | None = None,
        down: int | None = None,
        reset: bool = False,
        record: bool = False,
    ) -> None:
        self._target, self._limits, self._reset = target, (up, down), reset
        self._record, self.seen = record, bytearray()
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
            far = stack.enter_context(socket.create_connection(self._target))
            ends = stack.enter_context(selectors.DefaultSelector())
            self._open |= {near, far}
            left: list[int | None] = list(self._limits)
            ends.register(near, selectors.EVENT_READ, (far, 0))
            ends.register(far, selectors.EVENT_READ, (near, 1))
            ends.register(self._woken, selectors.EVENT_READ)
            with suppress(OSError):
                while all(each is None or each > 0 for each in left):
                    ready = ends.select()
                    if self._frozen:
                        self._thawed.wait()
                        return
                    for key, _ in ready:
                        if not self._pass_on(key.fileobj, *key.data, left):  # type: ignore[arg-type]
                            return
            if self._reset:
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: int, left: list[int | None]) -> bool:
        limit = left[way]
        data = source.recv(PIECE if limit is None else max(1, min(PIECE, limit)))
        if not data:
            return False
        if self._record:
            self.seen += data
        sink.sendall(data)
        left[way] = None if limit is None else limit - len(data)
        return True

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
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
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
