"""Servers that send what no ps-server sends: a worker says so, and acts on none of it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from pslab.launch.status_client import StatusClient, StatusError
from pswire.addresses import Address
from pswire.messages import EVENTS
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.codecs import FLOAT32
from pswire.transport.wire import wire_named
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.control.backoff import bounded
from psworker.data.carrier import Carrier, Endpoint, Settings
from psworker.data.changes import KnownVersion
from psworker.engine import Refusal, Stop
from psworker.errors import SessionError
from tests.sentences import Recorder
from tests.worker.replies import answering


class Said:
    """A stream on which a server says these messages."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages: Iterator[bytes] = iter(messages)
        self.closed = False

    def send(self, message: Any) -> None:
        """Whatever is asked."""

    def receive(self) -> bytes | None:
        return next(self._messages, None)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.JoinReply(worker_count=2**32 - 1), "JoinReply.worker_count: expected 0 to 1048576"),
        (pb.JoinReply(worker="w\x1b"), "JoinReply.worker: expected printable characters"),
        (
            pb.SessionReply(events=[pb.SessionEvent(grant=pb.Grant(ticket=2**64 - 1))]),
            "Grant.ticket: expected 0 to",
        ),
        (
            pb.SessionReply(events=[pb.SessionEvent(disposition=pb.Disposition(weight=math.nan))]),
            "Disposition.weight: expected a finite number",
        ),
        (shard_pb2.ExchangeReply(receipt=bytes(65)), "ExchangeReply.receipt: expected at most 64 bytes"),
    ],
    ids=["count", "name", "ticket", "weight", "receipt"],
)
def test_a_field_beyond_its_bound_ends_the_session(message: Any, words: str, sentences: Recorder) -> None:
    with pytest.raises(SessionError) as refused:
        bounded(message)
    sentences.check(refused)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff",
        b"\x0a" + bytes(2000),
        shard_pb2.ExchangeReply(bytes=2**63).SerializeToString(),
        shard_pb2.ExchangeReply(receipt=bytes(4000)).SerializeToString(),
    ],
    ids=["garbage", "long garbage", "an immense payload", "an endless receipt"],
)
def test_an_answer_that_is_none_closes_the_exchange(answer: bytes) -> None:
    settings = Settings(make_plan([VariableSpec("w", (4,))], 1), wire_named("float32"), 1.0)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        carrier = Carrier(0, Endpoint(Address("127.0.0.1", 1), channel), settings, memory=False)
        stream = carrier.stream = Said([answer])
        with pytest.raises(SessionError):
            carrier.ask([[b"anything"]])
    assert stream.closed and carrier.stream is None


def test_a_version_that_is_not_here_closes_the_stream() -> None:
    settings = Settings(make_plan([VariableSpec("w", (4,))], 1), wire_named("float32"), 1.0)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        carrier = Carrier(0, Endpoint(Address("127.0.0.1", 1), channel), settings, memory=False)
        stream = carrier.stream = Said([])
        answer = shard_pb2.ExchangeReply(unchanged=True), None
        known = KnownVersion(FLOAT32, settings.plan.shards[0])
        with pytest.raises(SessionError, match="for known, and none is here"):
            carrier.version(answer, 1, FLOAT32, np.empty(4, np.float32), known)
    assert stream.closed and carrier.stream is None


def test_reasons_are_escaped_where_they_come_in() -> None:
    stop = EVENTS.from_wire(pb.SessionEvent(stop=pb.Stop(reason="\x1b[2Jover\n")))
    assert isinstance(stop, Stop) and stop.reason == r"\x1b[2Jover\n"
    refusal = EVENTS.from_wire(pb.SessionEvent(refusal=pb.Refusal(message="x" * 4000)))
    assert isinstance(refusal, Refusal) and len(refusal.message) < 2100


def test_a_status_is_checked_and_escaped(sentences: Recorder) -> None:
    worker = pb.WorkerStatus(name="w0", state="waiting", waiting_for="\x1b[2J[bold]")
    with answering(pb.StatusReply(note="\x07", workers=[worker])) as address:
        client = StatusClient(address)
        status = client.ask()
        client.close()
    assert status.note == r"\x07" and status.workers[0].waiting_for == r"\x1b[2J[bold]"
    with answering(pb.StatusReply(phase="\x1b[2J")) as address:
        client = StatusClient(address)
        with pytest.raises(StatusError) as refused:
            client.ask()
        sentences.check(refused)
        client.close()
