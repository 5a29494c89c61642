"""A ticket's payload comes from its holder: every request proves a membership that stands, and is bound to it."""

import logging
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pswire.transport.channels import UNREAD_BYTES
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.service.http2 import Connection, grpc_message
from tests.service.peer import Peer, messages, piece
from tests.service.serving import PATIENCE, Cluster, refused, serving, wait_until

DENIED = grpc.StatusCode.PERMISSION_DENIED
ABORTED = grpc.StatusCode.ABORTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT

# What a process can say that knows the addresses only, and asks Status for the rest.
GUESSES: list[dict[str, Any]] = [
    {"membership_token": b""},
    {"membership_token": bytes(16)},
    {"worker": "w1"},
    {"worker": ""},
    {"incarnation": 1},
]


def whole(peer: Peer, grant: pb.Grant, server: int, value: float, **changed: Any) -> Iterator[Any]:
    data = np.full(peer.plan.shards[server].elements, value, "<f4").tobytes()
    return messages(peer.header(grant, server, **changed), data)


def push(cluster: Cluster, server: int, header: shard_pb2.PushHeader, data: bytes) -> None:
    cluster.shards[server].Push(iter(messages(header, data)), timeout=PATIENCE)


def pull(cluster: Cluster, server: int, request: shard_pb2.PullRequest) -> None:
    list(cluster.shards[server].Pull(request, timeout=PATIENCE))


def exchanged(cluster: Cluster, server: int, **request: Any) -> None:
    message = shard_pb2.ExchangeRequest(**request).SerializeToString()
    list(cluster.raw(server, "/pswire.v1.Shard/Exchange")(iter([message]), timeout=PATIENCE))


def attach(peer: Peer, grant: pb.Grant, **changed: Any) -> shard_pb2.Attach:
    fields = {
        "job": peer.job,
        "worker": peer.worker,
        "plan": peer.plan.fingerprint,
        "after": grant.index,
        **peer.proof(),
    }
    return shard_pb2.Attach(**{**fields, **changed})


def all_requests(peer: Peer, grant: pb.Grant, server: int, **changed: Any) -> dict[str, Callable[[], None]]:
    """Every request that touches payloads, as `peer` would make it but for what is changed."""
    cluster = peer.cluster
    header, read = peer.header(grant, server, **changed), peer.request(grant, **changed)
    data = bytes(peer.plan.shards[server].nbytes)
    return {
        "push": lambda: push(cluster, server, header, data),
        "pull": lambda: pull(cluster, server, read),
        "slots": lambda: pull(
            cluster, server, peer.request(grant, **{**changed, "ticket": 0, "slots": True})
        ),
        "exchanged push": lambda: exchanged(cluster, server, push=header, chunk=data),
        "exchanged pull": lambda: exchanged(cluster, server, pull=read),
        "attach": lambda: exchanged(cluster, server, attach=attach(peer, grant, **changed)),
    }


def test_of_a_strangers_payload_little_more_than_the_header_is_received() -> None:
    """HTTP/2's window is small until somebody reads."""
    with serving() as cluster, Peer(cluster, "w0") as peer:
        header = peer.header(peer.ready(), 0, membership_token=bytes(16))
        first = grpc_message(shard_pb2.PushRequest(header=header).SerializeToString())
        chunks = grpc_message(piece(bytes(2**22 - 64)).SerializeToString())
        connection = Connection(cluster.hosts)
        sent = connection.say(connection.open("/pswire.v1.Shard/Push"), first + chunks, seconds=2.0)
        connection.close()
    # gRPC may give the window a second time when it gives the header on.
    assert len(first) < sent <= len(first) + 3 * UNREAD_BYTES


@promise("Only the holder of a ticket can push its payload.")
def test_every_request_needs_the_proof() -> None:
    """A stranger knows the addresses, and everything that Status says. The honest payload stays."""
    with serving(2) as cluster, Peer(cluster, "w0") as peer, Peer(cluster, "w1") as other:
        grant = peer.ready()
        other.ready()
        receipts = [peer.push_messages(server, whole(peer, grant, server, 0.0)) for server in (0, 1)]
        for server, guess in product((0, 1), GUESSES):
            # With an entry of the future: who is not a member waits for nothing.
            for name, ask in all_requests(peer, grant, server, after=2**40, **guess).items():
                with refused(DENIED, "membership token") as caught:
                    ask()
                assert caught.value.details() is not None, name
                for secret in (peer.plan.fingerprint, str(peer.plan.shards[server].nbytes)):
                    assert secret not in caught.value.details(), f"{name} tells strangers {secret}"
        for server in (0, 1):
            for name, ask in all_requests(peer, grant, server).items():
                if name != "exchanged push":
                    ask()
        peer.commit(grant.ticket, receipts)
        peer.grant = None
        assert peer.settled().fate == pb.Disposition.FATE_APPLIED


@pytest.mark.parametrize("end", ["leave", "supersede"])
def test_a_proof_ends_with_the_membership(end: str) -> None:
    with serving(2) as cluster, Peer(cluster, "stays") as stays, Peer(cluster, "w1") as peer:
        stays.step()
        grant = peer.ready()
        requests = [ask for server in (0, 1) for ask in all_requests(peer, grant, server).values()]
        if end == "leave":
            peer.send(leave=pb.Leave(reason="enough"))
        else:
            again = Peer(cluster, "w1")
            assert again.reply.incarnation == 1
            assert again.reply.membership_token != peer.reply.membership_token
        wait_until(lambda: left(cluster, "w1", end), "the membership to end")
        cluster.picture()
        for ask in requests:
            with refused(ABORTED, "'w1', incarnation 0, is no member any more", "join again"):
                ask()
        if end == "supersede":
            again.step()
            again.leave()


def left(cluster: Cluster, name: str, end: str) -> bool:
    (worker,) = [w for w in cluster.status().workers if w.name == name]
    return worker.state == "left" if end == "leave" else worker.incarnation == 1


def test_another_members_ticket_is_neither_read_nor_pushed() -> None:
    with serving() as cluster, Peer(cluster, "w0") as peer, Peer(cluster, "w1") as other:
        grant = peer.ready()
        other.ready()
        with refused(ABORTED, f"ticket {grant.ticket} is w0's", "got one of 'w1'"):
            other.pull_bytes(grant, 0)
        with refused(ABORTED, f"ticket {grant.ticket} is w0's", "expected its payload, got one of 'w1'"):
            other.push_messages(0, whole(other, grant, 0, 1e6))
        assert peer.pull(grant) and peer.step().version == 1


def test_what_was_received_is_what_is_committed() -> None:
    """The holder itself cannot change it: neither before its commit nor while that is on its way."""
    with serving() as cluster, Peer(cluster, "w0") as peer:
        grant = peer.ready()
        receipt = peer.push_messages(0, whole(peer, grant, 0, 1.0))
        with refused(INVALID, "another one was accepted before", "expected the same again"):
            peer.push_messages(0, whole(peer, grant, 0, 2.0))
        assert peer.push_messages(0, whole(peer, grant, 0, 1.0)) == receipt
        peer.commit(grant.ticket, [receipt])
        peer.grant = None
        peer.settled()
        kernel = peer.pull(peer.ready())[0]
        assert (kernel == 0.0).all(), "1 - 1 * 1"


def test_proofs_are_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), serving(out=tmp_path / "run") as cluster:
        with Peer(cluster, "w0") as peer:
            peer.step()
            token = peer.reply.membership_token
            assert len(token) == 16
            status = cluster.status().SerializeToString()
            with refused(DENIED):
                peer.pull_bytes(peer.ready(), 0, worker="w7")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    kept = [status, caplog.text.encode(), *(file.read_bytes() for file in files)]
    for text in kept:
        for form in (token, token.hex().encode(), repr(token).encode()):
            assert form not in text
