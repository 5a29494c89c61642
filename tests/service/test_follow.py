"""The decision stream: one coordinator per server, and a server that it has lost goes home."""

import asyncio
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from psserver.service.net import registration
from pswire.exits import ExitCode
from pswire.transport.connecting import stub_of
from pswire.v1 import shard_pb2 as pb
from tests.sentences import Recorder
from tests.service.conftest import Unharmed
from tests.service.following import configure, decided, follow, opening
from tests.service.serving import PATIENCE, Cluster, Served, refused, wait_until

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def test_a_server_follows_one_coordinator(cluster: Cluster, unharmed: Unharmed) -> None:
    for request in (opening(), opening(job=cluster.status().job)):
        with unharmed(), refused(PRECONDITION, "server 1 follows a coordinator already"):
            follow(cluster.servers[1], request)
    for request in (decided(), pb.FollowRequest()):
        with unharmed(), refused(INVALID, "expected a FollowRequest with open first"):
            follow(cluster.servers[1], request)
    with unharmed(), refused(PRECONDITION, "server 0 hosts the coordinator and follows nobody"):
        follow(cluster.servers[0], opening())


def test_a_call_that_says_nothing_does_not_own_the_server(second: Served) -> None:
    silent = threading.Event()
    with grpc.insecure_channel(second.address) as channel:
        call = stub_of(channel, "Shard").Follow(iter(silent.wait, True), timeout=PATIENCE)
        grpc.channel_ready_future(channel).result(PATIENCE)
        # The coordinator is served all the same.
        shutdown = pb.FollowRequest(shutdown=pb.Shutdown(exit_code=0, reason="done"))
        assert [reply.executed for reply in follow(second, opening(), shutdown)] == [0, 0]
        silent.set()
        call.cancel()
    assert second.ended() == ExitCode.OK


@pytest.mark.parametrize(
    ("requests", "code", "words"),
    [
        ([], INVALID, "expected a FollowRequest with open first"),
        ([decided()], INVALID, "expected a FollowRequest with open first"),
        (
            [opening(task_index=0)],
            PRECONDITION,
            "this is server 1 of 2, but the coordinator takes it for server 0 of 2",
        ),
        ([opening(servers=3)], PRECONDITION, "server 1 of 3: give all servers the same --ps-hosts"),
    ],
    ids=["nothing", "no open", "another index", "another number"],
)
def test_an_opening_that_is_refused_changes_nothing(
    second: Served, requests: list[pb.FollowRequest], code: grpc.StatusCode, words: str
) -> None:
    with refused(code, words):
        follow(second, *requests)
    # The right one is taken afterwards.
    replies = follow(second, opening(), pb.FollowRequest(shutdown=pb.Shutdown(exit_code=0, reason="done")))
    assert [reply.executed for reply in replies] == [0, 0]
    assert second.ended() == ExitCode.OK


def test_garbage_instead_of_an_opening(second: Served) -> None:
    with grpc.insecure_channel(second.address) as channel:
        call = channel.stream_stream("/pswire.v1.Shard/Follow", None, None)
        with refused(INVALID, "expected a pswire.v1.FollowRequest, got 2 bytes that do not parse"):
            list(call(iter([b"\xff\xff"]), timeout=PATIENCE))
    assert second.code is None


BROKEN: dict[str, tuple[list[pb.FollowRequest], str]] = {
    "an entry is missing": (
        [decided(pb.Decision(index=4, note=True))],
        "expected entry 0 of the decision log next, got 4",
    ),
    "an unknown decision": (
        [decided(pb.Decision(index=0))],
        "decision 0: expected one of a kind that this server knows, got another",
    ),
    "another plan": ([configure(plan="x")], "run the same version of ps-server everywhere"),
    "an unknown optimizer": ([configure(optimizer='{"name": "sdg"}')], "sgd"),
    "an unknown compensator": ([configure(tensors='{"compensator": "tailor"}')], "expected one of taylor"),
    "tensor parts that are no table": (
        [configure(tensors="[1]")],
        "expected compensator, aggregator and knobs",
    ),
    "an unknown exit code": (
        [pb.FollowRequest(shutdown=pb.Shutdown(exit_code=99))],
        "expected a documented exit code, got 99",
    ),
    "nothing": ([pb.FollowRequest()], "expected configure, decisions or shutdown, got None"),
}


@pytest.mark.parametrize(("requests", "words"), BROKEN.values(), ids=BROKEN)
def test_a_stream_that_breaks_the_contract_ends_the_server(
    second: Served, requests: list[pb.FollowRequest], words: str
) -> None:
    """It cannot go on from a log with a hole: it says why, and exits as one that has lost its coordinator."""
    with pytest.raises(grpc.RpcError) as caught:
        follow(second, opening(), *requests)
    assert words in caught.value.details()
    assert second.ended() == ExitCode.UNREACHABLE


def test_a_log_that_contradicts_the_shard_is_reported(second: Served) -> None:
    """An apply without contributions: the error goes back on the stream, nothing is executed after it."""
    replies = follow(
        second,
        opening(),
        configure(),
        decided(pb.Decision(index=0, note=True), pb.Decision(index=1, apply=pb.Apply(version=7))),
        pb.FollowRequest(shutdown=pb.Shutdown(exit_code=3)),
    )
    # A server that compiles tells of that in between.
    failed = next(reply for reply in replies if reply.error)
    assert failed.executed == 1
    assert failed.error.startswith("server 1 cannot execute entry 1: ")
    assert second.ended() == ExitCode.UNREACHABLE


def test_the_exit_code_is_the_coordinators(second: Served) -> None:
    follow(second, opening(), pb.FollowRequest(shutdown=pb.Shutdown(exit_code=7, reason="no worker")))
    assert second.ended() == ExitCode.ABANDONED
    wait_until(lambda: "stopped" in second.events, "the announcement")
    assert second.events["stopped"] == {"reason": "no worker", "exit_code": 7}


def test_an_older_coordinator_does_not_end_what_a_newer_one_goes_on_with(
    second: Served, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    """The newer one has come, and does not know yet that it is to try again, when the older one ends its job."""
    came, told = threading.Event(), threading.Event()
    refuse = registration.abort

    async def late(*arguments: Any) -> None:
        came.set()
        await asyncio.to_thread(told.wait, PATIENCE)
        await refuse(*arguments)

    monkeypatch.setattr(registration, "abort", late)
    older: SimpleQueue[pb.FollowRequest | None] = SimpleQueue()
    with grpc.insecure_channel(second.address) as channel:
        stub = stub_of(channel, "Shard")
        first = stub.Follow(iter(older.get, None), timeout=PATIENCE)
        older.put(opening(job="job.1"))
        next(first)
        newer = stub.Follow(iter([opening(job="job.2", recover_timeout=30.0)]), timeout=PATIENCE)
        assert came.wait(PATIENCE)
        older.put(pb.FollowRequest(shutdown=pb.Shutdown(reason="over", exit_code=0)))
        with suppress(grpc.RpcError):
            list(first)
        older.put(None)
        told.set()
        with pytest.raises(grpc.RpcError):
            list(newer)
    assert second.ended() == ExitCode.UNREACHABLE
    sentences.check(second.server.continuation.again)
