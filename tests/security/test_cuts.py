"""A line over TLS is cut in the middle of 67 MB, at any place, from either end or on the way.

Whatever is received is what was sent: no frame is ever read from ciphertext, and none is a part of one. Neither end
keeps a thread or a descriptor.
"""

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from psserver.service.net import sockets
from psserver.service.net.streams import ServerStream
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FramedSocket, SocketError
from pswire.transport.frames import Message
from tests.comparing import same
from tests.promises import promise
from tests.relay import relayed
from tests.repetitions import seeds
from tests.security.test_line import WORKER, listening
from tests.service.loops import CLAIM, Opened
from tests.service.serving import PATIENCE, wait_until

FRAMES = [bytes([number + 1]) * (2 << 20) for number in range(32)]
TOTAL = sum(map(len, FRAMES))
# How a line is cut: by a router that says so, or does not; by the worker; by the server.
WAYS = ("end", "reset", "worker", "server")


class Payloads:
    """A server's end: takes a payload, or gives one, and counts what is not as it was sent."""

    def __init__(self) -> None:
        self.wrong: list[int] = []
        self.taken = 0

    async def serve(self, stream: ServerStream) -> None:
        wanted = await stream.receive()
        if wanted == b"pull":
            left = iter([(b"", memoryview(frame)) for frame in FRAMES])
            await stream.send_many(left)
            for parts in left:
                await stream.send(parts)
        elif wanted == b"push":
            expected = iter(FRAMES)
            while True:
                await stream.receive_many(lambda message: self._take(message, expected))
                message = await stream.receive()
                if message is None:
                    return
                self._take(message, expected)
        elif wanted is not None:
            self.wrong.append(len(wanted))

    def _take(self, message: Message, expected: Iterator[bytes]) -> bool:
        if message != next(expected, None):
            self.wrong.append(len(message))
        self.taken += 1
        return True


@promise(
    "A connection that is cut anywhere in 67 MB delivers whole frames or none, and leaves no thread and no "
    "descriptor."
)
def test_a_cut_line_gives_whole_frames_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOOK_EVERY", 0.01)
    payloads = Payloads()
    with listening(payloads.serve) as opened:
        seen: set[tuple[str, str]] = set()
        for number, seed in enumerate(seeds(8, soak=500, fast=8)):
            draw = random.Random(seed)
            way, verb = WAYS[number % 4], ("push", "pull")[number // 4 % 2]
            cut_once(opened, draw, way, verb)
            assert not payloads.wrong, f"seed {seed}: frames of {payloads.wrong} bytes that nobody sent"
            seen.add((way, verb))
            if number == 7:
                # By now whatever is made once is there.
                before = resources()
        assert len(seen) == 8
        assert payloads.taken
        # Fewer where some that other tests have left end meanwhile.
        wait_until(
            lambda: all(now <= then for now, then in zip(resources(), before, strict=True)),
            "threads and descriptors to be given back",
        )


def resources() -> tuple[int, int]:
    """Descriptors, threads."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def cut_once(opened: Opened, draw: random.Random, way: str, verb: str) -> None:
    # Early cuts as often as late ones.
    at = int(2 ** draw.uniform(12, 25.9))
    limits = {"up" if verb == "push" else "down": at} if way in ("end", "reset") else {}
    claim = CLAIM + os.urandom(8)
    with relayed(("127.0.0.1", opened.port), reset=way == "reset", **limits) as relay:
        connection = handshake.connect_tcp("127.0.0.1", relay.port, claim, WORKER.client_context())
        with closing(connection):
            frames = at * len(FRAMES) // TOTAL
            cuts = {"worker": connection.cut, "server": lambda: opened.end_membership(claim)}
            cut = threading.Thread(target=cuts.get(way, int))
            (push if verb == "push" else pull)(connection, frames, cut)
            cut.join(PATIENCE)
            assert not cut.is_alive()
    opened.end_membership(claim)
    wait_until(lambda: not opened.connections and not opened.unauthenticated, "the server to let go")


def push(connection: FramedSocket, frames: int, cut: threading.Thread) -> None:
    """Until the line is over; `cut` begins while frame number `frames` is sent."""
    with suppress(SocketError):
        connection.send([b"push"])
        for number, frame in enumerate(FRAMES):
            if number == frames:
                cut.start()
            connection.send([b"", frame])
    if not cut.ident:
        cut.start()
    assert connection.receive() is None


def pull(connection: FramedSocket, frames: int, cut: threading.Thread) -> None:
    with suppress(SocketError):
        connection.send([b"pull"])
    for number in range(len(FRAMES) + 1):
        if number == frames:
            cut.start()
        answer = connection.receive()
        if answer is None:
            break
        assert same(answer, (FRAMES[number], 0))
    if not cut.ident:
        cut.start()


def test_a_relay_that_closes_at_once_is_a_line_that_is_not_there() -> None:
    with listening(Payloads().serve) as opened:
        for at in (1, 5, 100, 517, 1000, 1500, 2000):
            with relayed(("127.0.0.1", opened.port), down=at) as relay, suppress(SocketError):
                handshake.connect_tcp("127.0.0.1", relay.port, CLAIM, WORKER.client_context()).close()
        wait_until(lambda: not opened.unauthenticated and not opened.connections, "the server to let go")
        assert socket.create_connection(("127.0.0.1", opened.port)).close() is None
