"""What the optimizer remembers, as members read it: the slots of a version, copied once for all who read it."""

import grpc
import numpy as np
import pytest

import psworker
from psserver.shard import Shard
from pswire.model.plan import VariableSpec
from psworker.engine import Grant
from psworker.link import Link
from tests.links import connect_link
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, refused, serving, wait_until

START = {"w": np.ones((300, 7), np.float32), "b": np.zeros(7, np.float32)}
MOMENTUM = ["optimizer.name=momentum", "optimizer.momentum=0.5", "optimizer.learning_rate=1.0"]


def trained(session: Link, steps: int) -> Grant:
    """So many gradients of ones; the ticket behind them."""
    grant = session.ready()
    for number in range(steps):
        assert grant is not None
        ones = [np.ones(shard.elements, np.float32) for shard in session.plan.shards]
        session.contribute(grant, ones, samples=1, batch=number)
        grant = session.ready()
    assert grant is not None
    return grant


@pytest.mark.parametrize(("transport", "servers"), [("grpc", 2), ("socket", 1), ("shared-memory", 2)])
def test_slots_of_a_grant_and_of_the_end(transport: str, servers: int) -> None:
    with (
        serving(servers, overrides=MOMENTUM, policy="sync") as cluster,
        connect_link(cluster.hosts, START, transport=transport) as session,
    ):
        grant = trained(session, 3)
        # -1, -1 - 1/2, -1 - 3/4
        (slot,) = session.pull_slots(1, grant)
        assert [array.shape for array in slot] == [(300, 7), (7,)]
        assert all((array == -1.75).all() for array in slot)
        session.abandon(grant, "enough")
        session.done()
        (last,) = session.pull_slots(1)
        assert all((array == -1.75).all() for array in last)


def test_before_the_first_update_they_are_as_they_begin() -> None:
    adagrad = ["optimizer.name=adagrad", "optimizer.initial_accumulator_value=0.25"]
    with serving(overrides=adagrad) as cluster, connect_link(cluster.hosts, START) as session:
        (slot,) = session.pull_slots(1, trained(session, 0))
        assert all((array == 0.25).all() for array in slot)


def test_readers_at_the_same_time_share_one_copy_and_leave_none() -> None:
    """Of a model that no connection takes at once: both are in the middle of it; one goes on, one is cut."""
    big = [VariableSpec("w", (4_000_000,))]
    with serving(overrides=MOMENTUM) as cluster, Peer(cluster, "w0", big) as peer:
        held = cluster.servers[0].probe.host.memory
        request = peer.request(peer.ready(), ticket=0, slots=True)
        first, second = (cluster.shards[0].Pull(request, timeout=PATIENCE) for _ in range(2))
        started = next(first), next(second)
        assert started[0].bytes == 16_000_000
        assert held.reserved == 16_000_000
        second.cancel()
        received = len(started[0].chunk) + sum(len(reply.chunk) for reply in first)
        assert received == 16_000_000
        wait_until(lambda: not held.reserved, "the copy to be given back")


def test_a_copy_that_cannot_be_made_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(overrides=MOMENTUM) as cluster, connect_link(cluster.hosts, START) as session:
        grant = trained(session, 1)

        def full(shard: Shard) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(Shard, "copied_slots", full)
            with pytest.raises(
                psworker.SessionError, match="no room for a copy of what the optimizer remembers"
            ):
                session.pull_slots(1, grant)
        (slot,) = session.pull_slots(1, grant)
        assert all((array == -1).all() for array in slot)


def test_no_room_for_a_copy_is_said() -> None:
    with serving(overrides=MOMENTUM) as cluster, Peer(cluster, "w0") as peer:
        grant = peer.ready()
        memory = cluster.servers[0].probe.host.memory
        memory.limit = memory.total
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room for a copy"):
            list(cluster.shards[0].Pull(peer.request(grant, ticket=0, slots=True), timeout=PATIENCE))
