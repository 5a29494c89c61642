"""Servers of several generations of one job: the later one is right, whoever comes first."""

import grpc
import pytest

from psserver.service.succession.patience import MOST_FRUITLESS, Patience
from pswire.exits import ExitCode
from pswire.model.plan import make_plan
from pswire.v1 import shard_pb2 as pb
from pswire.v1 import shard_pb2_grpc
from tests.service.peer import Peer, join_request
from tests.service.probe import late_status
from tests.service.serving import PATIENCE, VARIABLES, Options, Served, refused, serving


def opening(job: str, recover: float = 0.0) -> pb.FollowRequest:
    fields = {"job": job, "task_index": 1, "servers": 2, "secret": b"secret", "recover_timeout": recover}
    return pb.FollowRequest(open=pb.Open(**fields))  # type: ignore[arg-type]


def test_a_shard_lets_go_of_an_earlier_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is to begin again; a stale coordinator that comes back does not get it. The later one hears why, however long
    its answer takes: the server's end, which cuts all calls, waits for it."""
    late_status(monkeypatch)
    served = Served(Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1))
    with grpc.insecure_channel(served.address) as channel:
        stub = shard_pb2_grpc.ShardStub(channel)
        first = iter(stub.Follow(_open_for_ever(opening("job.1", 30.0)), timeout=PATIENCE))
        next(first)
        for stale in ("job", "job.1", "another.5"):
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "follows a coordinator already"):
                list(stub.Follow(iter([opening(stale)]), timeout=PATIENCE))
        with refused(grpc.StatusCode.UNAVAILABLE, "lets go of job.1: try again"):
            list(stub.Follow(iter([opening("job.2", 30.0)]), timeout=PATIENCE))
    assert served.ended() == ExitCode.UNREACHABLE
    assert (
        served.server.continuation.again == "the job goes on as job.2"
        and served.server.continuation.recover == 30.0
    )


def _open_for_ever(message: pb.FollowRequest):  # type: ignore[no-untyped-def]
    import threading

    yield message
    threading.Event().wait(PATIENCE)


def test_a_shard_whose_coordinator_is_gone_waits_for_as_long_as_that_one_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call whose end is the reason has its status first."""
    late_status(monkeypatch)
    for recover, again in ((0.0, None), (9.0, "the coordinator (server 0) is gone")):
        served = Served(Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1))
        with grpc.insecure_channel(served.address) as channel:
            list(shard_pb2_grpc.ShardStub(channel).Follow(iter([opening("job", recover)]), timeout=PATIENCE))
        assert served.ended() == ExitCode.UNREACHABLE
        assert served.server.continuation.again == again


def test_a_worker_of_an_earlier_generation_is_taken_and_one_of_a_later_is_told_to_wait() -> None:
    """The latter has met the coordinator that took over from this one."""
    with serving() as cluster:
        job = cluster.servers[0].probe.job.terms.job
        plan = make_plan(VARIABLES, 1)
        with refused(grpc.StatusCode.UNAVAILABLE, "has followed"):
            cluster.coordinator.Join(join_request(plan, job=f"{job}.1"), timeout=PATIENCE)
        with Peer(cluster, "w"):
            assert [worker.name for worker in cluster.status().workers] == ["w"]


def test_a_generation_that_makes_no_progress_is_followed_by_few() -> None:
    patience = Patience()
    assert patience.ended(5) and patience.ended(5) and patience.ended(9)
    assert patience.fruitless == 0
    assert [patience.ended(9) for _ in range(MOST_FRUITLESS)].count(True) == MOST_FRUITLESS - 1
