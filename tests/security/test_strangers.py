"""Strangers at a port with TLS, silent ones and such as begin a handshake, keep no invited worker waiting."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import psutil

from psserver.service.limits.table import UNAUTHENTICATED
from pswire.transport import framed_socket
from pswire.transport.framed_socket import SocketError
from tests.security.authorities import worker
from tests.security.test_line import WORKER, line_to, listening
from tests.service.serving import PATIENCE, wait_until

STRANGERS = 200
# Half handshakes, per second and in all.
PACE = 200
HALVES = 300
# What a worker may be late by; seconds.
LATE = 1.0
MESSAGE = bytes(1 << 20)


def hello() -> bytes:
    """The first words of a client that goes no further: a server answers with all that costs it time."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        WORKER.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@contextmanager
def strangers(port: int, count: int, said: bytes, pace: float = 0.0) -> Iterator[threading.Event]:
    """So many connections, each of which says that and no more; at most `pace` in a second. All stay open, as far as
    the server lets them. The event is set when all have come."""
    over, ended = threading.Event(), threading.Event()

    def come() -> None:
        with ExitStack() as stack:
            for _ in range(count):
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                stranger.sendall(said)
                if pace:
                    ended.wait(1 / pace)
            over.set()
            assert ended.wait(PATIENCE)

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield over
    finally:
        ended.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_invited_workers_are_served_among_strangers() -> None:
    """One that is there already, and ones that come."""
    with listening() as opened, ExitStack() as stack:
        here = stack.enter_context(closing(line_to(opened)))
        threads = threading.active_count()
        silent = stack.enter_context(strangers(opened.port, STRANGERS, b""))
        assert silent.wait(PATIENCE)
        before = psutil.Process().memory_info().rss
        begun = stack.enter_context(strangers(opened.port, HALVES, hello(), PACE))
        took = []
        while not begun.is_set() or len(took) < 5:
            since = time.monotonic()
            with closing(line_to(opened)) as coming:
                coming.send([MESSAGE])
                assert coming.receive() == (MESSAGE, 0)
            here.send([MESSAGE])
            assert here.receive() == (MESSAGE, 0)
            took.append(time.monotonic() - since)
            assert opened.unauthenticated <= UNAUTHENTICATED.value
        assert max(took) < LATE, took
        # Of the server none; two of the strangers.
        assert threading.active_count() <= threads + 2
        # TLS keeps some 40 KiB for a handshake that has begun, and there are at most so many; the rest is the echo's.
        assert psutil.Process().memory_info().rss - before < 64 << 20


def test_strangers_with_certificates_of_others_are_sent_away_at_once() -> None:
    """They cost what a handshake costs, and nothing stays of them."""
    foreign = worker(cluster="other")
    with listening() as opened, closing(line_to(opened)) as here:
        for _ in range(20):
            with suppress(SocketError):
                line_to(opened, foreign, bytes(framed_socket.TOKEN_BYTES))
        wait_until(lambda: not opened.unauthenticated, "the server to let go")
        here.send([MESSAGE])
        assert here.receive() == (MESSAGE, 0)
