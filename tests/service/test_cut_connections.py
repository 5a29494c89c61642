"""A connection between two servers that breaks is no death: it is dialled again, and the log goes on where it was."""

import threading

import grpc
import pytest

from psserver.service.job import follower
from pswire.exits import ExitCode
from pswire.v1 import shard_pb2 as pb
from tests.service.following import configure, decided, follow, opening
from tests.service.peer import Peer
from tests.service.serving import Cluster, Served, refused, serving, wait_until

NOTE = [pb.Decision(index=number, note=True) for number in range(6)]


def cut(cluster: Cluster) -> None:
    """Break the stream of decisions, at server 1."""
    probe = cluster.servers[1].probe
    served = probe.server.following
    assert served is not None
    rpc = served.rpc
    done = threading.Event()

    def act() -> None:
        if rpc._stream is not None:
            rpc._stream.caller.cancel()
        done.set()

    probe.host.runtime.tell(act)
    assert done.wait(60)


def test_a_server_whose_connection_is_broken_is_named_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "NAMED_AFTER", 0.0)
    monkeypatch.setattr(follower, "FIRST_PAUSE", 3600.0)
    with serving(2, overrides=["cluster.worker_timeout=3"]) as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        cut(cluster)
        words = "waiting for server 1 to answer: its connection broke (since "
        note = wait_until(lambda: words in (said := cluster.status().note) and said, "the name in status")
        assert note.endswith("at most 60 s)"), note
        monkeypatch.setattr(follower, "SERVER_AWAY", 0.0)
        stop = peer.receive("stop")
        assert not stop.success and "server 1" in stop.reason
        peer.leave()
        assert cluster.servers[0].ended() == ExitCode.UNREACHABLE
        cluster.servers[1].interrupt()
        cluster.servers[1].ended()


def test_what_was_executed_is_not_executed_again(second: Served) -> None:
    first = follow(second, opening(), configure(), decided(*NOTE[:3]))
    assert [reply.executed for reply in first] == [0, 0, 3]
    # The same coordinator again, which does not know how far its orders came.
    again = follow(second, opening(again=True), configure(), decided(*NOTE))
    assert [reply.executed for reply in again] == [3, 3, 6]
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "expected entry 6 of the decision log next, got 7"):
        follow(second, opening(again=True), decided(pb.Decision(index=7, note=True)))
    assert second.ended() == ExitCode.UNREACHABLE


def test_another_coordinator_waits_while_the_connection_of_the_first_is_broken(second: Served) -> None:
    follow(second, opening(), configure())
    for other in (opening(job="another"), opening(secret=b"another", again=True)):
        with refused(grpc.StatusCode.UNAVAILABLE, "waits for the coordinator of job job", "wait"):
            follow(second, other)
    end = pb.FollowRequest(shutdown=pb.Shutdown(exit_code=0, reason="done"))
    assert follow(second, opening(again=True), end)
    assert second.ended() == ExitCode.OK


def test_a_server_that_has_started_anew_is_not_taken_for_the_one_before(second: Served) -> None:
    with refused(
        grpc.StatusCode.FAILED_PRECONDITION, "server 1 has started anew", "holds nothing of job job"
    ):
        follow(second, opening(again=True))
    end = pb.FollowRequest(shutdown=pb.Shutdown(exit_code=0, reason="done"))
    assert follow(second, opening(), end)
