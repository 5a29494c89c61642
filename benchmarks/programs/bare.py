"""Bare TCP between two hosts: what a link carries when nothing but a socket is in the way.

One process listens, another connects and exchanges. Commands: listen {address}, connect {address, port}, exchange {up,
down, steps, pause}. Each step sends `up` bytes and receives `down` bytes: at least one, which says that all have
arrived.
"""

import socket
import struct
import threading
import time
from typing import Any

from benchmarks.programs.json_commands import serve

PIECE = 1 << 20
# Bytes that come, bytes that are wanted back.
REQUEST = struct.Struct("<QQ")

connection: socket.socket | None = None


def listen(address: str) -> dict[str, Any]:
    """Serve any number of connections until the process ends."""
    listener = socket.create_server((address, 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return {"port": listener.getsockname()[1]}


def _accept(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=_answer, args=(peer,), daemon=True).start()


def _answer(peer: socket.socket) -> None:
    buffer, answer = bytearray(PIECE), bytes(PIECE)
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while request := peer.recv(REQUEST.size, socket.MSG_WAITALL):
            up, down = REQUEST.unpack(request)
            _receive(peer, buffer, up)
            _send(peer, answer, down)


def _send(peer: socket.socket, data: bytes, count: int) -> None:
    view = memoryview(data)
    while count:
        count -= peer.send(view[: min(count, len(data))])


def _receive(peer: socket.socket, buffer: bytearray, count: int) -> None:
    view = memoryview(buffer)
    while count:
        received = peer.recv_into(view[: min(count, len(buffer))])
        if not received:
            raise ConnectionError("the other end closed the connection")
        count -= received


def connect(address: str, port: int) -> None:
    global connection
    connection = socket.create_connection((address, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def exchange(up: int, down: int, steps: int, pause: float = 0.0) -> dict[str, Any]:
    """`pause`: seconds of silence before each step; they do not count."""
    assert connection is not None, "connect comes first"
    buffer, data = bytearray(PIECE), bytes(PIECE)
    busy, begin = 0.0, time.monotonic()
    for _ in range(steps):
        # A link that has rested is what is measured: its bucket is full.
        time.sleep(pause)
        started = time.monotonic()
        connection.sendall(REQUEST.pack(up, down))
        _send(connection, data, up)
        _receive(connection, buffer, down)
        busy += time.monotonic() - started
    return {"begin": begin, "end": time.monotonic(), "steps": steps, "busy": busy}


if __name__ == "__main__":
    serve({"listen": listen, "connect": connect, "exchange": exchange})
