"""Payloads and reads that make no sense: one clear refusal each, and nothing has changed."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from psserver.receipts import membership_token
from pswire.v1 import shard_pb2
from pswire.v1.model_pb2 import WIRE_DTYPE_UNSPECIFIED
from tests.service.conftest import Steady, Unharmed
from tests.service.peer import Peer, messages, piece
from tests.service.serving import PATIENCE, VARIABLES, Cluster, refused, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
ABORTED = grpc.StatusCode.ABORTED


def whole(
    peer: Peer, server: int = 0, value: float = 1.0, **changed: object
) -> Iterator[shard_pb2.PushRequest]:
    """A good push, but for what is changed in its header."""
    data = np.full(peer.plan.shards[server].elements, value, "<f4").tobytes()
    return messages(peer.header(peer.ready(), server, **changed), data)


@pytest.fixture(autouse=True)
def ticket_stays_good(peer: Peer) -> Iterator[None]:
    """After every refusal the same ticket takes a good payload."""
    yield
    for server in (0, 1):
        assert len(peer.push_messages(server, whole(peer, server))) == 24


def header(peer: Peer, **changed: object) -> shard_pb2.PushRequest:
    return shard_pb2.PushRequest(header=peer.header(peer.ready(), 0, **changed))


def data(peer: Peer) -> bytes:
    return bytes(peer.plan.shards[0].nbytes)


STREAMS = {
    "nothing": (lambda p: [], ["expected a PushRequest with a header first", "empty stream"]),
    "chunk first": (
        lambda p: [piece(data(p))],
        ["expected a PushRequest with a header first", "got none"],
    ),
    "two headers": (
        lambda p: [header(p), header(p)],
        ["expected a chunk of the payload", "got another request"],
    ),
    "truncated": (
        lambda p: [header(p), piece(data(p)[:-4])],
        ["expected more chunks of the payload", "the stream ended"],
    ),
    "too long": (
        lambda p: [header(p), piece(data(p) + bytes(4))],
        ["expected 64 bytes", "got 68 or more"],
    ),
    "much too long": (
        lambda p: [header(p), piece(data(p)), piece(bytes(2**20))],
        ["expected no chunk behind the end of the payload"],
    ),
    "half an element": (
        lambda p: [header(p), piece(bytes(6)), piece(bytes(58))],
        ["whole float32 elements", "got 6 bytes at offset 0"],
    ),
}


@pytest.mark.parametrize(("stream", "words"), STREAMS.values(), ids=STREAMS)
def test_a_stream_that_is_no_payload(
    peer: Peer, unharmed: Unharmed, stream: object, words: list[str]
) -> None:
    with unharmed(), refused(INVALID, *words):
        peer.push_messages(0, stream(peer))  # type: ignore[operator]


@contextmanager
def impatient(peer: Peer) -> Iterator[None]:
    """Server 0 waits 0.5 s for an entry of the log: the one that is asked for never comes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        peer.cluster.servers[0].probe.patient(monkeypatch, 0.5)
        yield


HEADERS = {
    "no dtype": ({"dtype": WIRE_DTYPE_UNSPECIFIED}, INVALID, ["unknown wire dtype number 0; known: float32"]),
    "unknown dtype": ({"dtype": 99}, INVALID, ["unknown wire dtype number 99"]),
    "another length": (
        {"bytes": 56},
        INVALID,
        ["expected 64 bytes (16 float32", "server 0's part", "got 56"],
    ),
    "another job": ({"job": "other"}, PRECONDITION, ["expected job", "got 'other'"]),
    "another plan": ({"plan": "0123abcd"}, PRECONDITION, ["expected plan", "got '0123abcd'", "join again"]),
    "unknown ticket": (
        {"ticket": 10**9},
        ABORTED,
        [f"ticket {10**9} is not open here: it was never granted"],
    ),
    "the ticket of version 0": ({"ticket": 1}, ABORTED, ["ticket 1 is not open here", "settled"]),
    "an entry of the future": (
        {"after": 2**40},
        grpc.StatusCode.DEADLINE_EXCEEDED,
        ["expected more than", "it waited 0.5 s"],
    ),
}


@pytest.mark.parametrize(("changed", "code", "words"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_does_not_fit(
    peer: Peer, unharmed: Unharmed, changed: dict[str, object], code: grpc.StatusCode, words: list[str]
) -> None:
    with unharmed(), impatient(peer), refused(code, *words):
        peer.push_messages(0, whole(peer, **changed))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_named(cluster: Cluster, peer: Peer, unharmed: Unharmed, bad: float) -> None:
    """By variable and index, on whatever server it lies and in whatever chunk."""
    grant = peer.ready()
    for number, spec in enumerate(VARIABLES):
        index = tuple(length - 1 for length in spec.shape)
        # What is good of it is what the ticket gets in the end.
        arrays = [np.ones(s.shape, np.float32) for s in VARIABLES]
        arrays[number][index] = bad
        where = f"{spec.name}[{', '.join(map(str, index))}]"
        with unharmed(), refused(INVALID, "expected finite numbers", f"got {bad} at {where}"):
            peer.push(grant, arrays)


def test_one_message_may_not_be_endless(peer: Peer, unharmed: Unharmed) -> None:
    with unharmed(), refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
        peer.push_messages(0, [header(peer), piece(bytes(65 * 2**20))])


READS = {
    "another job": ({"job": "other"}, PRECONDITION, ["expected job", "got 'other'"]),
    "another plan": ({"plan": "x"}, PRECONDITION, ["expected plan", "got 'x'"]),
    "no dtype": ({"dtype": 0}, INVALID, ["unknown wire dtype number 0"]),
    "a version of the future": ({"version": 10**9}, INVALID, [f"version {10**9} does not exist yet"]),
    "a version of the past": ({"version": 0}, ABORTED, ["version 0 is gone", "ask for a new grant"]),
    "an entry of the future": ({"after": 2**40}, grpc.StatusCode.DEADLINE_EXCEEDED, ["expected more than"]),
}


@pytest.mark.parametrize(("changed", "code", "words"), READS.values(), ids=READS)
def test_a_read_that_cannot_be(
    peer: Peer,
    steady: Steady,
    unharmed: Unharmed,
    changed: dict[str, object],
    code: grpc.StatusCode,
    words: list[str],
) -> None:
    steady.step()
    with unharmed(), impatient(peer), refused(code, *words):
        peer.pull_bytes(peer.ready(), 0, **changed)


def test_before_there_is_a_model(unharmed: Unharmed) -> None:
    with serving(patience=0.2) as cluster:
        job = cluster.status().job
        # Nobody has joined: the proof is the coordinator's own, which waits for the model, too.
        proof = membership_token(cluster.servers[0].probe.host.secret, job, "", 0)
        pull = shard_pb2.PullRequest(job=job, plan="x", dtype=1, membership_token=proof)
        with refused(PRECONDITION, "no model yet: expected a worker to join"):
            list(cluster.shards[0].Pull(pull, timeout=PATIENCE))
        push = shard_pb2.PushRequest(
            header=shard_pb2.PushHeader(job=job, plan="x", dtype=1, ticket=1, membership_token=proof)
        )
        with refused(PRECONDITION, "no model yet: expected a worker to join"):
            cluster.shards[0].Push(iter([push]), timeout=PATIENCE)
