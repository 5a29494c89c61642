"""What this machine can do at this moment, whatever the software: the raw limits."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np

from benchmarks.measures.kernels import Arena, triad
from benchmarks.measures.samples import each
from benchmarks.peers.child import Child
from psserver.fast import FastBackend
from pswire.transport import socket_handshake as handshake

SOCKET_BYTES = 64 << 20
COPY_FLOATS = 16 << 20  # 67 MB: beyond any cache, as large as the largest load
MESSAGE = b"\1" + bytes(63)  # to be answered at once

# Name -> what it is, with its unit.
MEANING = {
    "socket": "loopback socket, one way, GB/s",
    "memcpy": "memory copy, bytes copied, GB/s",
    "triad": "a = b + s * c, one thread, bytes read and written, GB/s",
    "unary": "gRPC-Python unary call, ms",
    "stream": "gRPC-Python message and answer on an open stream, ms",
    "line": "message and answer on a Unix socket, ms",
}


class Limits:
    """Measures all limits again each time it is asked. A context manager."""

    def __init__(self, logs: Path) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in MEANING}
        self._arena = Arena(COPY_FLOATS)
        with ExitStack() as stack:
            self._backend = stack.enter_context(FastBackend(1))
            self._backend.prepare([(triad, triad.letters)])
            if not self._backend.wait_ready():
                raise RuntimeError(f"expected a compiled triad, but {self._backend.reason}")
            echo = Child("echo", ["-m", "benchmarks.programs.echo"], logs / "echo.log")
            stack.callback(echo.close)
            ports = echo.receive()
            self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", ports["socket"])))
            self._channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{ports['grpc']}"))
            self._unix = handshake.connect_unix(ports["unix"], bytes.fromhex(ports["tokens"][0]))
            stack.callback(self._unix.close)
            self._stack = stack.pop_all()

    def measure(self, seconds: float) -> dict[str, float]:
        """One more sample of each limit, in about `seconds` altogether."""
        share = seconds / len(MEANING)
        arena = self._arena
        gigabytes = arena.x.nbytes / 1e9
        measured = {
            "socket": SOCKET_BYTES / 1e9 / each(self._send, share),
            "memcpy": gigabytes / each(lambda: np.copyto(arena.out, arena.x), share),
            "triad": 3 * gigabytes / each(lambda: arena.triad(self._backend), share),
            "unary": 1e3 * self._unary(share),
            "stream": 1e3 * self._stream(share),
            "line": 1e3 * each(self._ask, share),
        }
        for name, value in measured.items():
            self.samples[name].append(value)
        return measured

    def _send(self) -> None:
        data = self._arena.x.view(np.uint8).data
        piece = 2 << 20
        self._socket.sendall(struct.pack("<Q", SOCKET_BYTES))
        for start in range(0, SOCKET_BYTES, piece):
            # Walk through memory, as a payload does: no piece is still in a cache.
            at = start % (data.nbytes - piece)
            self._socket.sendall(data[at : at + piece])
        self._socket.recv(1)

    def _ask(self) -> None:
        self._unix.send([MESSAGE])
        self._unix.receive()

    def _unary(self, seconds: float) -> float:
        call: Any = self._channel.unary_unary("/bench.Echo/Unary")
        return each(lambda: call(MESSAGE), seconds)

    def _stream(self, seconds: float) -> float:
        outgoing: SimpleQueue[bytes | None] = SimpleQueue()

        def messages() -> Iterator[bytes]:
            while (message := outgoing.get()) is not None:
                yield message

        call: Any = self._channel.stream_stream("/bench.Echo/Stream")
        answers: Iterator[bytes] = call(messages())

        def there_and_back() -> None:
            outgoing.put(MESSAGE)
            next(answers)

        with _ended(outgoing):
            return each(there_and_back, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def _ended(outgoing: "SimpleQueue[bytes | None]") -> Iterator[None]:
    try:
        yield
    finally:
        outgoing.put(None)
