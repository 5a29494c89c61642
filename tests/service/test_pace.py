"""What leaves lines in a log and no work behind has a pace; work has none."""

import queue
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.service.guard import rates
from psserver.service.guard.rates import Arrivals, Buckets, TokenBucket
from psserver.service.job import agreement
from psserver.service.net import coordinator, sessions
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.model.tables import TableSpec
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer, Stream, join_request
from tests.service.serving import PATIENCE, refused, serving

OTHER = make_plan([VariableSpec(f"v{number}", (1,)) for number in range(100)], 1)
# Per second: not one comes back while a test runs, however long that takes.
NEVER = 1e-6


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_so_many_per_second() -> None:
    clock = Clock()
    pace = TokenBucket(rate=2.0, burst=3, clock=clock)
    assert [pace.take() for _ in range(5)] == [True, True, True, False, False]
    assert pace.wait() == pytest.approx(0.5)
    clock.now += 0.5
    assert [pace.take() for _ in range(2)] == [True, False]
    clock.now += 1000
    assert [pace.take() for _ in range(4)] == [True, True, True, False]


def test_a_flood_of_new_names_does_not_keep_a_known_one_out() -> None:
    clock = Clock()
    arrivals = Arrivals(1, {"honest"}.__contains__, clock)
    for number in range(rates.NEW_BURST):
        assert arrivals.allows(f"n{number}")
        arrivals.record(f"n{number}")
    assert not arrivals.allows("newcomer") and arrivals.allows("honest")
    for _ in range(rates.REJOIN_BURST):
        assert arrivals.allows("honest")
        arrivals.record("honest")
    assert not arrivals.allows("honest")
    clock.now += 1.0
    assert arrivals.allows("honest") and arrivals.allows("newcomer")


def test_names_that_joined_and_left_without_a_commit_share_one_pace() -> None:
    """However many they are, and however long they were away."""
    clock, harness = Clock(), CoordinatorHarness()
    tallies = harness.coordinator.roster.tallies

    def proven(name: str) -> bool:
        return name in tallies and tallies[name].committed > 0

    arrivals = Arrivals(1, proven, clock)
    names = [f"n{number}" for number in range(1000)]
    for name in names:
        clock.now += 1 / rates.NEW_NAMES_PER_SECOND
        assert arrivals.allows(name)
        harness.joins(name, "A")
        arrivals.record(name)
        harness.leaves(name)
    clock.now += 1000
    began, let_in = clock.now, 0
    while clock.now - began <= 1.0:
        for name in names:
            if arrivals.allows(name):
                arrivals.record(name)
                let_in += 1
        clock.now += 0.125
    assert let_in == rates.NEW_BURST + rates.NEW_NAMES_PER_SECOND


def test_a_pace_that_is_full_again_is_forgotten() -> None:
    clock = Clock()
    arrivals = Arrivals(1, lambda name: True, clock)
    for number in range(100):
        arrivals.record(f"n{number}")
    assert len(arrivals) == 100
    clock.now += rates.REJOIN_BURST / rates.REJOINS_PER_SECOND + 1.0
    arrivals.record("last")
    assert len(arrivals) == 1
    for _ in range(rates.REJOIN_BURST - 1):
        arrivals.record("last")
    assert not arrivals.allows("last")
    # At the next look it is not full yet.
    clock.now += 1.0
    for _ in range(3):
        arrivals.record("last")
    clock.now += rates.REJOIN_BURST / rates.REJOINS_PER_SECOND - 0.5
    arrivals.record("other")
    assert len(arrivals) == 2


def test_a_loop_of_ready_and_abandon_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is read no faster; the others' are."""
    monkeypatch.setattr(sessions, "IDLE_MESSAGES", 20)
    monkeypatch.setattr(sessions, "IDLE_MESSAGES_PER_SECOND", NEVER)
    kinds: Counter[str] = Counter()
    with serving() as cluster, Peer(cluster, "steady") as steady:
        cluster.servers[0].probe.on_record(monkeypatch, lambda record: kinds.update([record.entry.kind]))
        steady.step()
        idle = Peer(cluster, "idle")
        for _ in range(20):
            idle.send(ready=pb.Ready())
            idle.send(abandon=pb.Abandon(ticket=idle.receive("grant").ticket, reason="again"))
        # What it says from here on waits at its own end.
        for ticket in range(1000):
            idle.send(ready=pb.Ready())
            idle.send(abandon=pb.Abandon(ticket=ticket, reason="again"))
        for _ in range(20):
            steady.step()
        assert kinds["abandon"] <= 21 and kinds["apply"] == 21
        assert idle.stream.ending is None


@pytest.mark.parametrize(
    "again", [{"ready": pb.Ready()}, {"commit": pb.Commit(ticket=10**6)}], ids=["ready", "commit"]
)
def test_ready_and_commit_beyond_a_members_tickets_are_slowed_down(
    monkeypatch: pytest.MonkeyPatch, again: dict[str, Any]
) -> None:
    """One of each is free for every ticket, and its grant that is sent again brings no more."""
    monkeypatch.setattr(sessions, "IDLE_MESSAGES", 20)
    monkeypatch.setattr(sessions, "IDLE_MESSAGES_PER_SECOND", NEVER)
    with serving() as cluster, Peer(cluster, "steady") as steady:
        steady.step()
        loud = Peer(cluster, "loud")
        loud.ready()
        # The last of these that is read has an answer, and so has each before it.
        for _ in range(1000):
            loud.send(**again)
        for _ in range(50):
            steady.step()
        answers = 0
        with suppress(queue.Empty):
            while loud.stream.next(0.0):
                answers += 1
        assert 0 < answers <= 22
        assert loud.stream.ending is None


def test_joins_beyond_the_pace_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "NEW_BURST", 4)
    monkeypatch.setattr(rates, "NEW_NAMES_PER_SECOND", NEVER)
    with serving() as cluster, Peer(cluster, "a") as peer:
        assert peer.step().version == 1
        for name in ("b", "c", "d"):
            cluster.coordinator.Join(join_request(peer.plan, worker=name, session=name), timeout=PATIENCE)
        with refused(grpc.StatusCode.UNAVAILABLE, "too many workers join at once"):
            cluster.coordinator.Join(join_request(peer.plan, worker="e", session="e"), timeout=PATIENCE)
        with refused(grpc.StatusCode.UNAVAILABLE, "too many workers join at once"):
            cluster.coordinator.Join(join_request(peer.plan, worker="b", session="b"), timeout=PATIENCE)
        # Who has committed may come back.
        again = cluster.coordinator.Join(
            join_request(peer.plan, worker="a", session=peer.token), timeout=PATIENCE
        )
        assert again.incarnation == peer.reply.incarnation
        peer.stream.close()
        peer.stream = Stream(cluster, peer.hello())
        assert peer.step().version == 2


# Models


def test_each_key_has_a_bucket_that_is_forgotten_when_it_is_full() -> None:
    clock = Clock()
    buckets = Buckets(rate=1.0, burst=2, clock=clock)
    for _ in range(2):
        assert buckets.allows("noisy")
        buckets.spend("noisy")
    assert not buckets.allows("noisy") and buckets.allows("other")
    clock.now += 2.0
    assert buckets.allows("noisy")
    buckets.spend("other")
    assert len(buckets) == 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the server makes."""
    made: list[Plan] = []

    def plan(variables: Sequence[VariableSpec], servers: int, tables: Sequence[TableSpec]) -> Plan:
        made.append(make_plan(variables, servers, tables))
        return made[-1]

    monkeypatch.setattr(agreement, "make_plan", plan)
    return made


def test_a_flood_of_other_models_is_neither_planned_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the job joins meanwhile from the same address: its model is known by its fingerprint."""
    planned = counted(monkeypatch)
    monkeypatch.setattr(coordinator, "MODELS_PER_SECOND", NEVER)
    with serving(policy="async") as cluster, Peer(cluster, "first") as first:
        first.step()
        before = len(planned)
        answers = Counter[grpc.StatusCode]()
        for number in range(3 * rates.MODEL_BURST):
            request = join_request(OTHER, worker=f"other-{number}", session="s")
            with pytest.raises(grpc.RpcError) as caught:
                cluster.coordinator.Join(request, timeout=PATIENCE)
            answers[caught.value.code()] += 1
        # The first worker's model was new, too.
        assert answers == {
            grpc.StatusCode.FAILED_PRECONDITION: rates.MODEL_BURST - 1,
            grpc.StatusCode.UNAVAILABLE: 2 * rates.MODEL_BURST + 1,
        }
        with Peer(cluster, "second") as second:
            second.step()
        assert len(planned) == before, "the job has a model"


def test_models_are_planned_at_a_pace_while_the_job_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = counted(monkeypatch)
    monkeypatch.setattr(coordinator, "MODELS_PER_SECOND", NEVER)
    with serving() as cluster:
        for _ in range(3 * rates.MODEL_BURST):
            with pytest.raises(grpc.RpcError):
                cluster.coordinator.Join(join_request(OTHER, plan="0123"), timeout=PATIENCE)
    assert len(planned) == rates.MODEL_BURST


def test_the_jobs_fingerprint_with_another_model_is_refused() -> None:
    with serving(policy="async") as cluster, Peer(cluster, "first") as first:
        first.step()
        request = join_request(OTHER, worker="first", session="s")
        request.plan = first.plan.fingerprint
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "plan fingerprint"):
            cluster.coordinator.Join(request, timeout=PATIENCE)
        del request.variables[:]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "got none"):
            cluster.coordinator.Join(request, timeout=PATIENCE)
        first.step()
