"""Frames that a thread moves: whole ones are handed on, and what the peer makes wait for is given back."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from psserver.service.net import bulk
from pswire.transport.framed_socket import FRAME_BYTES, HEAD
from pswire.transport.frames import Message
from tests import patience
from tests.comparing import same

# Seconds; more than a test takes.
LONG = patience.PATIENCE
TURN = bulk.TURN


@pytest.fixture(autouse=True)
def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn ends because this process is kept from running."""
    monkeypatch.setattr(bulk, "TURN", LONG)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's, which never blocks, and the peer's."""
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def framed(message: bytes) -> bytes:
    return HEAD.pack(len(message), 0) + message


def received(here: socket.socket, wanted: int = 100) -> tuple[list[bytes], bytes]:
    """Frames, until there are so many, and the beginning of the next."""
    frames: list[bytes] = []

    def take(message: Message) -> bool:
        frames.append(bytes(message))
        return len(frames) < wanted

    return frames, bulk.receive(here, FRAME_BYTES, take)


def test_messages_are_sent_whole_and_the_rest_of_one_that_is_not_taken_is_given_back(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    messages = [(b"head", bytes([number]) * 2**18) for number in range(20)]
    pending = iter(messages)
    stream = b""
    there.setblocking(False)

    def read() -> bytes:
        data = b""
        while True:
            try:
                data += there.recv(2**20)
            except BlockingIOError:
                return data

    stopped = 0
    while len(stream) < sum(HEAD.size + 4 + len(payload) for _, payload in messages):
        rest = bulk.send(here, pending)
        stream += read()
        while rest:
            stopped += 1
            rest = rest[here.send(rest) :]
            stream += read()
    assert stopped
    assert same(stream, b"".join(framed(head + payload) for head, payload in messages))


# Peers that never rest, and are slow: they go on for LONG. A thread is free long before, in the middle of a frame.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer counts as one that rests, however busy this machine is."""
    monkeypatch.setattr(bulk, "REST", 1000 * int(LONG))


class Clock:
    """Of the threads that move frames: it goes on by a tenth of a turn whenever it is looked at."""

    def __init__(self) -> None:
        self.looked = 0.0

    def now(self) -> float:
        self.looked += bulk.TURN / 10
        return self.looked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread is free after two turns: one, and another for the end of a frame."""
    clock = Clock()
    monkeypatch.setattr(bulk, "running", clock)
    monkeypatch.setattr(bulk, "TURN", TURN)
    yield
    assert TURN < clock.looked <= 2.5 * TURN <= 0.125


@contextmanager
def trickle(step: Callable[[], object]) -> Iterator[None]:
    """`step` again and again, on a socket that does not block: nobody is at its other end when the thread is free."""
    over, end, whole = threading.Event(), time.monotonic() + LONG, threading.Event()

    def run() -> None:
        while not over.wait(0.001):
            if time.monotonic() > end:
                whole.set()
                return
            with suppress(BlockingIOError):
                step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not whole.is_set(), "the peer has a thread for itself"


@pytest.mark.usefixtures("patient", "clock")
def test_a_peer_that_sends_byte_by_byte_holds_no_thread(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.sendall(HEAD.pack(FRAME_BYTES, 0))
    there.setblocking(False)
    with trickle(lambda: there.send(b"x")):
        frames, begun = received(here)
    assert frames == [] and begun[: HEAD.size] == HEAD.pack(FRAME_BYTES, 0)


@pytest.mark.usefixtures("patient", "clock")
def test_a_peer_that_reads_little_by_little_holds_no_thread(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
    payload = bytes(FRAME_BYTES - 100)
    there.setblocking(False)
    with trickle(lambda: there.recv(256)):
        rest = bulk.send(here, iter([(b"head", payload)]))
    assert 0 < len(rest) <= len(payload)
