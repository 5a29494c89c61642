"""Frames that a thread moves: whole ones are handed on, and what the peer makes wait for is given back."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from psserver.service.net import bulk
from psserver.service.net.bulk import SMALL, Buffers
from psserver.service.net.connection import Connection
from psserver.service.net.loop import HeavyWork, Owner
from pswire.transport.framed_socket import FRAME_BYTES, HEAD, SocketError
from pswire.transport.frames import Message
from tests import patience
from tests.comparing import same
from tests.sentences import Recorder
from tests.service import loops

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


def test_a_frame_that_is_too_long_is_refused_by_its_head(
    ends: tuple[socket.socket, socket.socket], sentences: Recorder
) -> None:
    here, there = ends
    there.sendall(HEAD.pack(FRAME_BYTES + 1, 0))
    with sentences.raises(SocketError):
        received(here)


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


def test_a_thread_goes_on_with_what_the_loop_began(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SMALL)
    # Of the second frame the loop reads no more than the beginning, for nobody waits for it then.
    there.sendall(framed(b"first") + framed(b"s" * SMALL) + framed(b"third"))
    taken: list[tuple[int, str]] = []

    def take(message: Message) -> bool:
        taken.append((len(message), threading.current_thread().name.rstrip("0123456789_")))
        return False

    async def live() -> "list[Message | None]":
        owner = Owner()
        owner.begin()
        threads = HeavyWork(owner, 1, "payload")
        connection = Connection(owner.loop, here, Buffers(), threads, "", lambda nbytes: LONG)
        given: list[Message | None] = []
        ended = owner.loop.create_future()

        async def serve() -> None:
            given.append(await connection.receive())
            await connection.receive_many(take)
            given.append(await connection.receive())

        connection.run(serve(), ended.set_result)
        assert await ended is None
        threads.close()
        return given

    assert loops.run(live()) == [b"first", b"third"]
    assert taken == [(SMALL, "payload")]


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
