"""How a connection ends: the peer receives the reason, and neither end keeps anything of it."""

from contextlib import closing

import grpc
import numpy as np
import pytest

from psserver.service.errors import precondition, unavailable
from psserver.service.net import exchange, sockets
from psserver.service.net.streams import ServerStream
from pswire.model.plan import VariableSpec
from pswire.transport import socket_handshake as handshake
from pswire.transport.codecs import FLOAT32
from pswire.transport.framed_socket import FramedSocket, SocketError
from pswire.v1 import shard_pb2
from psworker.data.streams import SocketBroken
from psworker.engine import Grant
from psworker.errors import PayloadRefused
from psworker.link import Link
from tests.links import connect_link
from tests.probes import SessionProbe
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, serving, wait_until
from tests.shm.sessions import connect, granted, proof, step
from tests.shm.test_sockets import KINDS, listening, stream_to

# Far more than a socket holds.
BIG = VariableSpec("big", (6 << 20,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_a_peer_that_is_still_sending(
    kind: str, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    """A socket that is closed with something unread takes back what was sent on it last."""
    # However long it takes to send the rest.
    monkeypatch.setattr(sockets, "REFUSED_CLOSES", PATIENCE)

    async def picky(stream: ServerStream) -> None:
        await stream.receive()
        raise precondition("expected another word")

    with listening(picky) as opened, closing(stream_to(opened, kind)) as stream:
        for _ in range(32):
            stream.send([bytes(2 << 20)])
        with pytest.raises(SocketBroken) as caught:
            stream.receive()
        sentences.check(caught)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("transport", ["grpc", "socket"])
def test_a_bad_number_early_in_a_large_payload_is_named(transport: str, sentences: Recorder) -> None:
    ones = [(BIG, np.ones(BIG.shape, np.float32))]
    with serving() as cluster:
        with connect_link(cluster.hosts, ones, transport=transport, server_timeout=PATIENCE) as session:
            grant = granted(session)
            session.pull_flat(grant)
            bad = np.ones(BIG.shape, np.float32)
            bad[3] = np.nan
            with pytest.raises(PayloadRefused) as refused:
                session.push_flat(grant, [bad])
            sentences.check(refused)
            session.abandon(grant, "enough")


def test_a_server_that_goes_away_while_it_is_dialled_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not available, only a server that is there can say."""
    dial, reason = handshake.connect_tcp, exchange.reason_against

    async def ending(*_: object) -> str | None:
        monkeypatch.setattr(exchange, "reason_against", reason)
        raise unavailable("server 0 is shutting down")

    def gone(*_: object) -> FramedSocket:
        monkeypatch.setattr(handshake, "connect_tcp", dial)
        monkeypatch.setattr(exchange, "reason_against", ending)
        raise SocketError("no socket today")

    monkeypatch.setattr(handshake, "connect_tcp", gone)
    with serving() as cluster, connect(cluster.hosts, "socket") as session:
        step(session, 0)
        assert session.transport == ("socket",)


def test_a_server_without_a_part_needs_no_memory() -> None:
    ones = [(VariableSpec("only", (1,)), np.ones(1, np.float32))]
    with serving(servers=2) as cluster:
        with connect_link(cluster.hosts, ones, transport="shared-memory", server_timeout=PATIENCE) as session:
            step_once(session)
            assert session.transport[0] == "shared-memory"


def step_once(session: Link) -> None:
    grant = granted(session)
    flats = session.pull_flat(grant)
    session.contribute(grant, flats, samples=1)


def test_a_worker_that_never_reads_holds_up_no_other() -> None:
    """The server is stuck in sending a version. Updates go on, and the end of its connection frees it."""
    # It is not cut for that, however long the other's steps take.
    patient = [f"cluster.worker_timeout={10 * PATIENCE}"]
    with (
        serving(overrides=patient) as cluster,
        connected(cluster, "good") as good,
        connected(cluster, "deaf") as deaf,
    ):
        step_once(good)
        grant = granted(deaf)
        deaf.pull_flat(grant)
        connection = SessionProbe(deaf).carriers()[0].stream.connection
        connection.send([asked(deaf, grant)])
        assert connection.receive() is not None, "the beginning of a version, which nobody reads to its end"
        for _ in range(3):
            step_once(good)
        probe = cluster.servers[0].probe
        assert probe.sockets == 2
        connection.cut()
        wait_until(lambda: probe.sockets == 1, "the server to let go")


def connected(cluster: Cluster, name: str) -> Link:
    ones = [(BIG, np.ones(BIG.shape, np.float32))]
    return connect_link(cluster.hosts, ones, name=name, transport="socket", server_timeout=PATIENCE)


def asked(session: Link, grant: Grant) -> bytes:
    pull = shard_pb2.PullRequest(
        job=session.info.job,
        ticket=grant.ticket,
        version=grant.version,
        plan=session.plan.fingerprint,
        dtype=FLOAT32.number,
        after=grant.index,
        worker=session.info.worker,
        **proof(session),
    )
    return shard_pb2.ExchangeRequest(pull=pull).SerializeToString()


def test_memory_whose_connection_broke_before_it_was_opened_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a server lends goes with the connection on which it came."""
    taken = FramedSocket.descriptors

    with serving() as cluster, connect(cluster.hosts) as session:

        def late(self: FramedSocket, count: int) -> list[int]:
            monkeypatch.setattr(FramedSocket, "descriptors", taken)
            probe = cluster.servers[0].probe
            probe.cut_sockets()
            wait_until(lambda: not probe.sockets, "the server to let go of what it lent")
            return taken(self, count)

        monkeypatch.setattr(FramedSocket, "descriptors", late)
        step(session, 0)
        assert session.transport == ("shared-memory",)
