"""Many peers: silent ones keep nobody out, and who is one too many is told so."""

import resource
import socket
from contextlib import ExitStack

import grpc
import pytest

from psserver.service.guard import machine
from pswire.v1 import coordinator_pb2 as pb
from tests.links import connect_link
from tests.service.peer import Peer
from tests.service.serving import ONES, PATIENCE, granted, refused, serving, wait_until

STRANGERS = 1000


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * STRANGERS, reason="needs 4000 descriptors"
)
def test_a_thousand_connections_that_never_speak_keep_nobody_out() -> None:
    """On gRPC's port, and on that for payloads."""
    with serving() as cluster, Peer(cluster, "worker") as worker, ExitStack() as stack:
        worker.step()
        server = cluster.servers[0].server
        ports = [int(cluster.servers[0].address.rpartition(":")[2])]
        ports.append(server.owner.ask(lambda: server.sockets.port))
        for number in range(STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[number % 2]), PATIENCE))
        assert worker.step().version == 2
        with connect_link(cluster.hosts, ONES) as late:
            grant = granted(late)
            late.pull_flat(grant)
            assert late.transport == ("shared-memory",)
        assert worker.step().version == 3


def test_one_more_than_there_is_room_for_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = machine.RESERVED_DESCRIPTORS + 2 * machine.DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (room, room))
    with serving() as cluster, Peer(cluster, "one") as one, Peer(cluster, "two") as two:
        with refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "room for 2 workers at once, and has them", "ulimit -n"
        ):
            Peer(cluster, "three")
        # Who is here may join again, and a place that is left is another's.
        Peer(cluster, "one")
        assert one.worker == "one"
        two.send(leave=pb.Leave(reason="test"))
        wait_until(lambda: [w.state for w in cluster.status().workers if w.name == "two"] == ["left"], "it")
        Peer(cluster, "three")
