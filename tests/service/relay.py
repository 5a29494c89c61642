"""A slow link: a relay on a port of this machine that passes so many bytes per second each way."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Small pieces: what is behind a large payload waits for it as in a router's queue, not in one leap.
PIECE = 16 * 1024


class Link:
    """One direction: all connections share it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._closing = threading.Event()
        self.passed = 0

    def carry(self, count: int) -> None:
        """Wait until `count` more bytes have passed."""
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + count / self._rate
            self.passed += count
            until = self._free_at
        self._closing.wait(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        self._closing.set()


class Relay:
    """Listens at `address`; each connection is carried to `target`, "host:port"."""

    def __init__(self, target: str, rate: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.up, self.down = Link(rate), Link(rate)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            # A kernel that buffers megabytes would hide how slow the link is.
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * PIECE)
            self._open += [near, far]
            threading.Thread(target=self._pump, args=(near, far, self.up), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, self.down), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, link: Link) -> None:
        try:
            while data := source.recv(PIECE):
                link.carry(len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def close(self) -> None:
        self.up.close()
        self.down.close()
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in (self._listening, *self._open):
            each.close()


@contextmanager
def slowly(target: str, rate: float) -> Iterator[Relay]:
    """`rate`: bytes per second each way."""
    relay = Relay(target, rate)
    try:
        yield relay
    finally:
        relay.close()
