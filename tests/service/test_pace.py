"""What leaves lines in a log and no work behind has a pace; work has none."""

import asyncio
import queue
from collections import Counter
from contextlib import suppress

import grpc
import numpy as np
import pytest

from psserver.service.guard.limits import JOIN
from psserver.service.guard.pace import KeyedPace
from psserver.service.net import coordinator
from pswire.v1 import coordinator_pb2 as pb
from tests.links import connect_link
from tests.service.peer import Peer, join_request
from tests.service.serving import ONES, PATIENCE, granted, refused, serving

# Per second: not one comes back while a test runs, however long that takes.
NEVER = 1e-6


def test_a_burst_then_so_many_per_second() -> None:
    now = [100.0]

    async def spend() -> None:
        asyncio.get_running_loop().time = lambda: now[0]  # type: ignore[method-assign]
        pace = KeyedPace(rate=2.0, burst=3)
        assert [pace.take("a") for _ in range(5)] == [True, True, True, False, False]
        assert pace.wait("a") == pytest.approx(0.5) and pace.wait("b") == 0
        now[0] += 0.5
        assert [pace.take("a") for _ in range(2)] == [True, False]
        now[0] += 1000
        assert [pace.take("a") for _ in range(4)] == [True, True, True, False]
        pace.spend("b", 5)
        assert pace.wait("b") == pytest.approx(1.5)

    asyncio.run(spend())


def test_a_loop_of_ready_and_abandon_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is read no faster; the others' are."""
    # Behind its Join and its session.
    monkeypatch.setattr(coordinator, "BURST", 20 + 2 * JOIN)
    monkeypatch.setattr(coordinator, "PER_SECOND", NEVER)
    kinds: Counter[str] = Counter()
    with serving() as cluster, Peer(cluster, "steady") as steady:
        cluster.servers[0].probe.on_record(monkeypatch, lambda record: kinds.update([record.entry.kind]))
        steady.step()
        idle = Peer(cluster, "idle")
        for _ in range(20):
            idle.send(ready=pb.Ready())
            idle.send(abandon=pb.Abandon(ticket=idle.receive("grant").ticket, reason="again"))
        # What it says from here on waits at its own end.
        for ticket in range(100):
            idle.send(ready=pb.Ready())
            idle.send(abandon=pb.Abandon(ticket=ticket, reason="again"))
        for _ in range(20):
            steady.step()
        assert kinds["abandon"] <= 21 and kinds["apply"] == 21
        assert idle.stream.ending is None


def test_ready_beyond_a_members_tickets_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is free for every ticket, and its grant that is sent again brings no more."""
    # Behind its Join and its session.
    monkeypatch.setattr(coordinator, "BURST", 20 + 2 * JOIN)
    monkeypatch.setattr(coordinator, "PER_SECOND", NEVER)
    with serving() as cluster, Peer(cluster, "steady") as steady:
        steady.step()
        loud = Peer(cluster, "loud")
        loud.ready()
        # The last of these that is read has an answer, and so has each before it.
        for _ in range(100):
            loud.send(ready=pb.Ready())
        for _ in range(10):
            steady.step()
        answers = 0
        with suppress(queue.Empty):
            while loud.stream.next(0.0):
                answers += 1
        assert 0 < answers <= 22
        assert loud.stream.ending is None


def test_joins_beyond_the_pace_of_a_name_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others join meanwhile."""
    # Two are those of its session, and of its first Join.
    monkeypatch.setattr(coordinator, "BURST", 4 * JOIN)
    monkeypatch.setattr(coordinator, "PER_SECOND", NEVER)
    with serving() as cluster, Peer(cluster, "a") as peer:
        assert peer.step().version == 1

        def joins(name: str, session: str) -> pb.JoinReply:
            request = join_request(peer.plan, worker=name, session=session)
            reply: pb.JoinReply = cluster.coordinator.Join(request, timeout=PATIENCE)
            return reply

        for _ in range(2):
            assert joins("a", peer.token).incarnation == peer.reply.incarnation
        with refused(grpc.StatusCode.UNAVAILABLE, "too often"):
            joins("a", peer.token)
        joins("b", "b")
        assert peer.step().version == 2


def test_a_session_that_breaks_faster_than_the_pace_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Join alone spends what its session needs, so the session waits, and the worker need not join again."""
    monkeypatch.setattr(coordinator, "BURST", JOIN)
    monkeypatch.setattr(coordinator, "PER_SECOND", 3.0 * JOIN)
    with serving() as cluster, connect_link(cluster.hosts, ONES, name="anna") as anna:
        for _ in range(3):
            cluster.servers[0].probe.end_sessions()
            grant = granted(anna)
            anna.push(grant, {"dense/bias": np.ones(4)})
            anna.commit(grant, samples=1)
