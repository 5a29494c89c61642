"""Memory that a peer can cause is bounded for each member and in all, and a model that cannot fit is refused."""

import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
import numpy as np
import pytest

from pslab.display.status import memory_line, memory_sentences, status_json
from psserver.service.guard import machine
from psserver.service.guard.limits import MEMBER_CALLS
from psserver.service.guard.machine import default_limit
from psserver.service.guard.memory import MIB, Memory
from pswire.config.units import parse_size
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FRAME_BYTES
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.asking import ask
from tests.probes import received_bytes
from tests.service.peer import Peer, join_request, messages
from tests.service.serving import PATIENCE, Cluster, refused, serving, wait_until
from tests.shm.sessions import segments_of

WIDE = (VariableSpec("w", (1_000_000,)),)  # 4 MB


class Exchanges:
    """Open exchange streams, each with its requests in turn."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        stack.callback(self._over.set)

    def open(self, *requests: shard_pb2.ExchangeRequest) -> Any:
        def said() -> Iterator[bytes]:
            yield from (request.SerializeToString() for request in requests)
            self._over.wait(PATIENCE)

        return self._cluster.raw(0, "/pswire.v1.Shard/Exchange")(said(), timeout=PATIENCE)


def claim(peer: Peer) -> bytes:
    reply = peer.reply
    return shard_pb2.Attach(
        job=peer.job,
        worker=peer.worker,
        incarnation=reply.incarnation,
        membership_token=reply.membership_token,
        plan=peer.plan.fingerprint,
    ).SerializeToString()


def test_a_member_attaches_as_often_as_it_may_call() -> None:
    """Its newest connections have memory; older ones are cut, and their segments go."""
    with serving() as cluster, ExitStack() as stack, Peer(cluster, "worker", WIDE) as peer:
        peer.step()
        host, server = cluster.servers[0].probe.host, cluster.servers[0].server
        name = ask(server.runtime, lambda: server.sockets.name)
        before = len(segments_of("self"))
        lines = []
        for number in range(1, 9):
            line, answer = handshake.connect_unix(name, claim(peer))
            lines.append(stack.enter_context(closing(line)))
            assert not shard_pb2.Attached.FromString(answer).refusal
            kept = 4_000_000 * min(number, MEMBER_CALLS)
            wait_until(lambda kept=kept: host.memory.reserved == kept, "the memory of older ones")
        for line in lines[:-MEMBER_CALLS]:
            assert line.receive() is None
            line.close()
        # A slot and the control word of each: the server's, and the same files as its worker has them.
        wait_until(lambda: len(segments_of("self")) <= before + 2 * MEMBER_CALLS, "older segments to go")
        for line in lines[-MEMBER_CALLS:]:
            line.cut()
        wait_until(lambda: not host.memory.reserved, "the room to be given back")


def test_a_ticket_has_one_payload_on_its_way_in() -> None:
    with serving() as cluster, ExitStack() as stack, Peer(cluster, "worker", WIDE) as peer:
        grant = peer.ready()
        header, first, *_ = messages(peer.header(grant, 0), bytes(4_000_000))
        begin = [
            shard_pb2.ExchangeRequest(push=header.header),
            shard_pb2.ExchangeRequest(chunk=first.chunk),
        ]
        exchanges = Exchanges(cluster, stack)
        calls = [exchanges.open(*begin) for _ in range(20)]
        staging = cluster.servers[0].probe.shard.staging

        def ended() -> int:
            return sum(call.code() is not None for call in calls if not call.is_active())

        wait_until(lambda: ended() >= 19, "all but one to be cut")
        assert staging.peak <= 2
        assert peer.step().version == 1, "the worker's own takes the place of what is on its way"


def test_a_model_that_cannot_fit_is_refused_with_the_numbers() -> None:
    with serving(memory_limit=100 * MIB) as cluster:
        big = make_plan([VariableSpec("w", (2**28,))], 1)
        words = ("its part has 1024.0 MiB, which takes 5120.0 MiB at least", "--memory-limit is 100.0 MiB")
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory for this model", *words):
            cluster.coordinator.Join(join_request(big), timeout=PATIENCE)
        assert cluster.servers[0].probe.job.agreement.plan is None
        with Peer(cluster, "worker") as peer:
            assert peer.step().version == 1


def test_slots_beyond_the_limit_are_refused_and_the_worker_does_without() -> None:
    with serving(memory_limit=21 * MIB) as cluster, ExitStack() as stack, Peer(cluster, "a", WIDE) as a:
        a.step(0.0)
        server = cluster.servers[0].server
        line, answer = handshake.connect_unix(ask(server.runtime, lambda: server.sockets.name), claim(a))
        stack.callback(line.close)
        reply = shard_pb2.Attached.FromString(answer)
        assert "expected at most 21.0 MiB in all (--memory-limit)" in reply.refusal
        assert a.step(0.0).version == 2


def test_a_worker_for_whom_there_is_no_room_is_refused_with_the_numbers() -> None:
    """A policy that keeps contributions side by side: 4 MB for each."""
    median = ["policy.name=median", "policy.fewest=1"]
    with serving(memory_limit=22 * MIB, overrides=median) as cluster, Peer(cluster, "a", WIDE) as a:
        a.step(0.0)
        with refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory for worker number 2", "4.3 for each worker"
        ):
            Peer(cluster, "b", WIDE)
        assert [w.name for w in cluster.status().workers] == ["a"]
        assert a.step(0.0).version == 2


@pytest.mark.parametrize("servers", [1, 2])
def test_status_shows_what_memory_is_held_for(servers: int) -> None:
    """On every server; the parts add up; of the same size whoever joins."""
    with serving(servers, memory_limit=200 * MIB) as cluster, Peer(cluster, "a", WIDE) as peer:
        grant = peer.ready()
        for server, flat in enumerate(peer.plan.scatter([np.zeros(WIDE[0].shape, np.float32)])):
            peer.push_messages(server, messages(peer.header(grant, server), flat.tobytes()))
        size = 4_000_000 // servers

        def shown() -> bool:
            memories = [server.memory for server in cluster.status().servers]
            return all(any(part.kind == "payloads" for part in memory.parts) for memory in memories)

        wait_until(shown, "every server to say what it holds")
        for server in cluster.status().servers:
            memory = server.memory
            assert memory.limit == 200 * MIB
            parts = {part.kind: part.bytes for part in memory.parts}
            assert sum(parts.values()) == memory.total
            assert parts["payloads"] >= size and parts["model"] >= 3 * size
        status = cluster.status()
        assert memory_line(status.servers[0].memory).endswith("of 200 MiB")
        assert "payloads " in memory_sentences(status)[0]
        assert status_json(status)["servers"][0]["memory"]["limit"] == 200 * MIB


def test_memory_grows_with_what_comes_and_not_with_what_is_announced() -> None:
    import socket
    import struct

    from pswire.transport.framed_socket import FramedSocket

    one, other = socket.socketpair()
    with closing(FramedSocket(one)) as connection, closing(other):
        other.sendall(struct.pack("<IB", FRAME_BYTES, 0) + bytes(1000))
        reading = threading.Thread(target=connection.receive, daemon=True)
        reading.start()
        wait_until(lambda: received_bytes(connection), "the frame to begin")
        assert received_bytes(connection) <= 2**18
        other.close()
        reading.join(PATIENCE)


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


# The account


def test_what_is_beyond_the_limit_is_refused_with_nothing_changed() -> None:
    memory = Memory(100 * MIB, 3)
    assert memory.take(90 * MIB) is None
    assert "of which 90.0 are taken, got 20.0 more" in str(memory.take(20 * MIB))
    assert memory.total == 90 * MIB
    memory.give(30 * MIB)
    assert memory.take(20 * MIB) is None and memory.total == 80 * MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("1.5 MiB", 3 * 2**19), ("1048576", 2**20), ("2g", None), ("1KiB", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="expected"):
            parse_size(text)
    else:
        assert parse_size(text) == size
    assert default_limit() > 100 * MIB
