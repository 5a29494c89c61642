"""Exchange: whatever it refuses is refused before anything is decided, and its ticket stays good."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from psserver.receipts import LENGTH
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.service.conftest import Unharmed
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, refused, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

Exchange = shard_pb2.ExchangeRequest


@pytest.fixture(scope="module")
def alone() -> Iterator[Peer]:
    """The only worker of the only server."""
    with serving() as cluster, Peer(cluster, "alone") as peer:
        peer.ready()
        yield peer


def step(peer: Peer, server: int = 0, **changed: Any) -> Exchange:
    """A whole step in one message, but for what is changed in it."""
    grant = peer.ready()
    data = np.ones(peer.plan.shards[server].elements, "<f4").tobytes()
    fields: dict[str, Any] = {
        "push": peer.header(grant, server),
        "chunk": data,
        "commit": committing(peer),
    }
    return Exchange(**{**fields, **changed})


def committing(peer: Peer, hello: pb.Hello | None = None, **changed: Any) -> pb.CommitRequest:
    commit = pb.Commit(**{"ticket": peer.ready().ticket, "samples": 1, **changed})
    return pb.CommitRequest(hello=hello or peer.hello(), commit=commit)


def ask(peer: Peer, *requests: Exchange, server: int = 0) -> list[shard_pb2.ExchangeReply]:
    return list(peer.cluster.shards[server].Exchange(iter(requests), timeout=PATIENCE))


def hello(peer: Peer, **changed: Any) -> pb.Hello:
    made = peer.hello()
    made.MergeFrom(pb.Hello(**changed))
    return made


def header(peer: Peer, **changed: Any) -> shard_pb2.PushHeader:
    return peer.header(peer.ready(), 0, **changed)


STEPS: dict[str, tuple[Any, grpc.StatusCode, str]] = {
    "nothing": (
        lambda p: Exchange(),
        INVALID,
        "expected an ExchangeRequest with push, pull, commit or attach",
    ),
    "another worker": (
        lambda p: step(p, push=header(p, worker="x"), commit=None),
        DENIED,
        "membership token",
    ),
    "too little": (lambda p: step(p, chunk=bytes(4)), INVALID, "the stream ended"),
    "not a number": (
        lambda p: step(p, chunk=np.full(31, np.nan, "<f4").tobytes()),
        INVALID,
        "got nan at dense/kernel[0, 0]",
    ),
    "a hello of another job": (
        lambda p: step(p, commit=committing(p, hello(p, job="x"))),
        INVALID,
        "a hello of this job",
    ),
    "a hello of nobody": (
        lambda p: step(p, commit=committing(p, hello(p, worker="x"))),
        INVALID,
        "expected a hello of the worker that pushed",
    ),
    "another process's hello": (
        lambda p: step(p, commit=committing(p, hello(p, session="guessé"))),
        PRECONDITION,
        "worker 'alone' is another session's; join first",
    ),
    "a commit of another ticket": (
        lambda p: step(p, commit=committing(p, ticket=10**6)),
        INVALID,
        "expected a commit of the ticket that was pushed",
    ),
}


@pytest.mark.parametrize(("request_of", "code", "words"), STEPS.values(), ids=STEPS)
def test_a_step_that_is_refused(alone: Peer, request_of: Any, code: grpc.StatusCode, words: str) -> None:
    before = alone.cluster.picture()
    with refused(code, words):
        ask(alone, request_of(alone))
    assert alone.cluster.picture() == before
    # The same ticket serves for a good one.
    reply = ask(alone, step(alone, commit=None))
    assert len(reply[0].receipt) == LENGTH + 8


def test_a_request_in_the_middle_of_a_payload(alone: Peer) -> None:
    before = alone.cluster.picture()
    begun = step(alone, chunk=bytes(8), commit=None)
    with refused(INVALID, "expected a chunk of the payload that was begun, got another request"):
        ask(alone, begun, step(alone))
    assert alone.cluster.picture() == before


def test_with_several_servers_a_payload_and_its_commit_come_apart(peer: Peer, unharmed: Unharmed) -> None:
    for server, words in enumerate(
        ["the job has several servers; commit with their receipts", "server 0 takes them"]
    ):
        with unharmed(), refused(PRECONDITION, words):
            request = step(peer, server, push=peer.header(peer.ready(), server))
            ask(peer, request, server=server)


STAGED: dict[str, tuple[dict[str, Any], int, grpc.StatusCode, str]] = {
    "one receipt": ({"receipts": 1}, 0, PRECONDITION, "none that is valid from server 1"),
    "another server": ({}, 1, PRECONDITION, "server 0 takes them"),
    "nobody's hello": ({"worker": "x"}, 0, UNAVAILABLE, "has no open session now"),
    "another session": ({"session": "x"}, 0, PRECONDITION, "another session's; join first"),
}


@pytest.mark.parametrize(("wrong", "server", "code", "words"), STAGED.values(), ids=STAGED)
def test_a_commit_with_receipts_that_is_refused(
    peer: Peer, unharmed: Unharmed, wrong: dict[str, Any], server: int, code: grpc.StatusCode, words: str
) -> None:
    grant = peer.ready()
    receipts = peer.push(grant, [np.ones(spec.shape, np.float32) for spec in peer.plan.variables])
    told = hello(peer, **{key: wrong[key] for key in ("job", "worker", "session") if key in wrong})
    order = slice(None, None, -1) if wrong.get("receipts") == -1 else slice(wrong.get("receipts"))
    request = committing(peer, told, ticket=wrong.get("ticket", grant.ticket), receipts=receipts[order])
    with unharmed(), refused(code, words):
        ask(peer, Exchange(commit=request), server=server)
    if server == 0:
        with unharmed(), refused(code, words):
            peer.cluster.coordinator.Commit(request, timeout=PATIENCE)


def test_after_all_that_the_step_counts_once(alone: Peer) -> None:
    ticket = alone.ready().ticket
    (reply,) = ask(alone, step(alone))
    alone.grant = None
    (told,) = [event.disposition for event in reply.events if event.HasField("disposition")]
    assert (told.ticket, told.version, told.fate) == (ticket, 1, pb.Disposition.FATE_APPLIED)
    assert alone.cluster.status().committed == 1


def test_a_commit_that_is_sent_again_is_answered_with_the_same_fate() -> None:
    """Behind its payload, which is received and forgotten, and without; the stream goes on."""
    with serving() as cluster, Peer(cluster, "again") as peer:
        peer.ready()
        request, grant = step(peer), peer.ready()
        fates = []
        for reply in ask(peer, request, request, Exchange(commit=request.commit)):
            fates += [e.disposition for e in reply.events if e.HasField("disposition")]
        again = cluster.coordinator.Commit(request.commit, timeout=PATIENCE)
        fates += [event.disposition for event in again.events]
        assert len(fates) == 4 and {fate.SerializeToString() for fate in fates} == {
            pb.Disposition(
                ticket=grant.ticket, fate=pb.Disposition.FATE_APPLIED, version=1, weight=1
            ).SerializeToString()
        }
        assert cluster.status().committed == 1
        peer.grant = None
