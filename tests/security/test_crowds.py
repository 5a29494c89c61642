"""Strangers at a port with TLS, silent ones and such as begin a handshake, keep no invited worker waiting."""

import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import psutil
import pytest

from psserver.service.guard.limits import UNPROVEN
from psserver.service.net.sockets import AT_ONCE
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.transport import channels, framed_socket
from pswire.transport.framed_socket import SocketError
from psworker.link import Link
from tests.asking import ask
from tests.comparing import same
from tests.links import connect_link
from tests.patience import within
from tests.promises import promise
from tests.security.authorities import worker
from tests.security.identities import Identities
from tests.security.test_line import WORKER, line_to, listening
from tests.service.serving import PATIENCE, granted, serving, wait_until

STRANGERS = 200
# Half handshakes, per second and in all.
PACE = 200
HALVES = 300
# What a worker may be late by; seconds.
LATE = 1.0
# That a stranger has for its handshake; seconds. Whoever waited for one would outlast this test.
FOR_EVER = 3600.0
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
            # As long as the test takes.
            ended.wait()

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield over
    finally:
        ended.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_socket, "HANDSHAKE_TIMEOUT", FOR_EVER)


@pytest.mark.nightly
@promise("Hundreds of silent strangers and half handshakes keep no worker from its steps.")
def test_invited_workers_are_served_among_strangers() -> None:
    """One that is there already, and ones that come."""
    with listening() as opened, ExitStack() as stack:
        here = stack.enter_context(closing(line_to(opened)))
        threads = threading.active_count()
        silent = stack.enter_context(strangers(opened.port, STRANGERS, b""))
        assert silent.wait(PATIENCE)
        served, held = 0, []
        for _ in range(2):
            # The first of them take up all the room that there is for strangers.
            begun = stack.enter_context(strangers(opened.port, HALVES // 2, hello(), PACE))
            while not begun.is_set() or served < 5:
                with within(LATE):
                    with closing(line_to(opened)) as coming:
                        coming.send([MESSAGE])
                        assert same(coming.receive(), (MESSAGE, 0))
                    here.send([MESSAGE])
                    assert same(here.receive(), (MESSAGE, 0))
                served += 1
                assert opened.unauthenticated <= UNPROVEN + AT_ONCE
            gc.collect()
            held.append(psutil.Process().memory_info().rss)
        # Of the server none; three of the strangers.
        assert threading.active_count() <= threads + 3
        assert held[1] - held[0] < 32 << 20, held


def test_strangers_with_certificates_of_others_are_sent_away_at_once() -> None:
    """They cost what a handshake costs, and nothing stays of them."""
    foreign = worker(cluster="other")
    with listening() as opened, closing(line_to(opened)) as here:
        for _ in range(20):
            with suppress(SocketError):
                line_to(opened, foreign)
        wait_until(lambda: not opened.unauthenticated, "the server to let go")
        here.send([MESSAGE])
        assert same(here.receive(), (MESSAGE, 0))


def test_a_training_goes_on_among_strangers_at_both_ports(identities: Identities) -> None:
    """Acceptance 8: gRPC's port and the line's."""
    ones = {"v": np.ones(1 << 16, np.float32)}
    own = identities.options(Role.WORKER, "w0")
    files = {"tls_ca": own.tls_ca, "tls_cert": own.tls_cert, "tls_key": own.tls_key}
    with ExitStack() as stack:
        cluster = stack.enter_context(
            serving(
                security=lambda index: identities.options(Role.SERVER, f"server-{index}"),
                credentials=identities.credentials(Role.OBSERVER),
            )
        )
        session = stack.enter_context(
            connect_link(cluster.hosts, ones, transport="socket", server_timeout=PATIENCE, **files)
        )
        step(session)
        assert session.transport == ("socket",)
        sockets = cluster.servers[0].server.sockets
        ports = (
            int(cluster.hosts.rpartition(":")[2]),
            ask(cluster.servers[0].server.runtime, lambda: sockets.port),
        )
        threads = threading.active_count()
        for port in ports:
            assert stack.enter_context(strangers(port, STRANGERS // 2, b"")).wait(PATIENCE)
        floods = [stack.enter_context(strangers(port, HALVES // 2, hello(), PACE // 2)) for port in ports]
        served = 0
        while not all(flood.is_set() for flood in floods) or served < 5:
            with within(LATE):
                step(session)
            served += 1
        # The four of the strangers, and gRPC's own, of which it starts a few more under load.
        assert threading.active_count() <= threads + 4 + 4


def step(session: Link) -> None:
    grant = granted(session)
    session.contribute(grant, session.pull_flat(grant), samples=1)


def test_grpc_ends_a_handshake_that_does_not_end(
    identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own default is two minutes. With and without TLS."""
    monkeypatch.setattr(channels, "HANDSHAKE_SECONDS", 0.5)
    for security in (
        lambda index: SecurityOptions(),
        lambda index: identities.options(Role.SERVER, f"server-{index}"),
    ):
        with serving(security=security, credentials=identities.credentials(Role.OBSERVER)) as cluster:
            port = int(cluster.hosts.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as silent:
                with suppress(ConnectionResetError):
                    while silent.recv(1 << 16):
                        # The first words of HTTP/2, where there is no TLS.
                        continue
