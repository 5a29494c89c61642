"""Servers of several generations of one job: the later one is right, whoever comes first."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from psserver.service.life.servers import MOST_FRUITLESS, Patience
from psserver.service.server import Server
from psserver.service.store.admission import Claims
from psserver.settings import resolve
from pswire.exits import ExitCode
from pswire.model.plan import make_plan
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2
from pswire.v1 import shard_pb2 as pb
from psworker import JobStopped
from tests.probes import SessionProbe
from tests.sentences import Recorder
from tests.service.following import follow, opening
from tests.service.peer import Peer, join_request
from tests.service.probe import late_status
from tests.service.serving import PATIENCE, VARIABLES, Options, Served, granted, refused, serving
from tests.shm.sessions import connect, step


def test_a_shard_lets_go_of_an_earlier_generation(second: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is to begin again; a stale coordinator that comes back does not get it. The later one hears why, however long
    its answer takes: the server's end, which cuts all calls, waits for it."""
    late_status(monkeypatch)
    said: SimpleQueue[pb.FollowRequest | None] = SimpleQueue()
    said.put(opening(job="job.1", recover_timeout=30.0))
    with grpc.insecure_channel(second.address) as channel:
        first = stub_of(channel, "Shard").Follow(iter(said.get, None), timeout=PATIENCE)
        next(first)
        for stale in ("job", "job.1", "another.5"):
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "follows a coordinator already"):
                follow(second, opening(job=stale))
        with refused(grpc.StatusCode.UNAVAILABLE, "lets go of job.1: try again"):
            follow(second, opening(job="job.2", recover_timeout=30.0))
        said.put(None)
    assert second.ended() == ExitCode.UNREACHABLE
    following = second.server.continuation
    assert (following.again, following.recover) == ("the job goes on as job.2", 30.0)


@pytest.mark.parametrize(("recover", "again"), [(0.0, None), (9.0, "the coordinator (server 0) is gone")])
def test_a_shard_whose_coordinator_is_gone_waits_for_as_long_as_that_one_said(
    second: Served, monkeypatch: pytest.MonkeyPatch, sentences: Recorder, recover: float, again: str | None
) -> None:
    """The call whose end is the reason has its status first."""
    late_status(monkeypatch)
    follow(second, opening(recover_timeout=recover))
    assert second.ended() == ExitCode.UNREACHABLE
    assert second.server.continuation.again == again
    if again is None:
        sentences.check(second.events["stopped"]["reason"])


def test_a_server_that_nobody_gives_orders_to_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 0 was never started, or has ended before this one came back."""
    monkeypatch.setattr("psserver.service.life.following.LEAST_PATIENCE", 0.2)
    said: list[str] = []

    def announce(name: str, fields: Mapping[str, Any]) -> None:
        said.append(str(fields["reason"])) if name == "stopped" else None

    hosts = "127.0.0.1:1,127.0.0.1:0"
    settings = resolve(Options(ps_hosts=hosts, task_index=1, overrides=("cluster.idle_timeout=0.1",)), None)
    assert Server(settings, announce).run() == ExitCode.UNREACHABLE
    assert len(said) == 1 and "server 0 at 127.0.0.1:1) gave no orders within 0.2 s" in said[0]


def test_a_worker_of_an_earlier_generation_is_taken_and_one_of_a_later_is_told_to_wait() -> None:
    """The latter has met the coordinator that took over from this one."""
    with serving() as cluster:
        job = cluster.servers[0].probe.job.terms.job
        plan = make_plan(VARIABLES, 1)
        with refused(grpc.StatusCode.UNAVAILABLE, "has followed"):
            cluster.coordinator.Join(join_request(plan, job=f"{job}.1"), timeout=PATIENCE)
        with Peer(cluster, "w"):
            assert [worker.name for worker in cluster.status().workers] == ["w"]


def test_a_worker_cuts_what_it_has_asked_an_earlier_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ended while a request came in never answers it, and nothing breaks."""
    admit, armed, asked = Claims.admit, threading.Event(), threading.Event()

    async def silent_once(self: Claims, *given: Any) -> Any:
        if armed.is_set() and not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return await admit(self, *given)

    monkeypatch.setattr(Claims, "admit", silent_once)
    with serving() as cluster, connect(cluster.hosts) as session, ThreadPoolExecutor(1) as pool:
        grant = granted(session)
        flats = session.pull_flat(grant)
        armed.set()
        pushed = pool.submit(session.push_flat, grant, [flat.copy() for flat in flats])
        shard = SessionProbe(session).shard()
        try:
            assert asked.wait(PATIENCE)
            later = coordinator_pb2.JoinReply()
            later.CopyFrom(SessionProbe(session).joined())
            later.job += ".1"
            shard.admit(later)
            pushed.result(PATIENCE)
        finally:
            shard.close()


@pytest.mark.parametrize("transport", ["grpc", "shared-memory"])
def test_a_job_that_began_again_has_no_last_version_for_who_heard_its_end(
    transport: str, sentences: Recorder
) -> None:
    """A server was lost behind the end. A new session goes on with the later generation, so a restart makes sense."""
    with serving() as cluster, connect(cluster.hosts, transport) as session:
        step(session, 0)
        session.done()
        cluster.servers[0].probe.host.state.job = f"{session.info.job}.1"
        with sentences.raises(JobStopped):
            session.pull_final()


def test_a_generation_that_makes_no_progress_is_followed_by_few() -> None:
    patience = Patience()
    assert patience.ended(5) and patience.ended(5) and patience.ended(9)
    assert patience.fruitless == 0
    assert [patience.ended(9) for _ in range(MOST_FRUITLESS)].count(True) == MOST_FRUITLESS - 1
