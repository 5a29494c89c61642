"""A slot of shared memory can be written into after its payload was received: nothing comes of it, under any policy."""

from collections.abc import Sequence

import numpy as np
import pytest

from pswire.exits import ExitCode
from tests.service.serving import serving, wait_until
from tests.shm.sessions import begun, connect, gradient, granted

# What a worker writes into its slot when it should not: numbers, large ones, none.
SPOILT = [np.float32(7), np.float32(3e38), np.float32("nan")]
POLICIES: dict[str, tuple[str, Sequence[str]]] = {
    "async": ("async", ()),
    "sync": ("sync", ()),
    "median": ("median", ("policy.fewest=1",)),
    "trimmed-mean": ("trimmed-mean", ("policy.trim=0",)),
    "k-batch-async": ("k-batch-async", ("policy.aggregate=2",)),
}


@pytest.mark.parametrize("policy", ["async", "sync", "median", "trimmed-mean"])
@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_applied_is_what_was_received(policy: str, spoilt: np.float32, servers: int) -> None:
    """The slot changes between push and commit."""
    name, knobs = POLICIES[policy]
    with serving(servers, policy=name, overrides=knobs) as cluster:
        with connect(cluster.hosts) as session:
            grant = granted(session)
            before = session.pull_flat(grant)
            slots, values = session.slot_flat(grant), gradient(session, 1)
            for slot, payload in zip(slots, values, strict=True):
                slot[...] = payload
            session.push_flat(grant, slots)
            for slot in slots:
                slot[...] = spoilt
            session.commit(grant, samples=1, loss=1.0)
            again = granted(session)
            for shard, old, payload, new in zip(
                session.plan.shards, before, values, session.pull_flat(again), strict=True
            ):
                assert (new[: shard.trainable] == old[: shard.trainable] - payload[: shard.trainable]).all()
            session.abandon(again, "enough")
            assert session.done().success
        assert {served.ended() for served in cluster.servers} == {ExitCode.OK}


@pytest.mark.parametrize("policy", ["sync", "median", "k-batch-async"])
@pytest.mark.parametrize("spoilt", SPOILT)
def test_what_is_summed_later_is_what_was_received(policy: str, spoilt: np.float32) -> None:
    """The slot changes after the commit, while the update waits for another worker."""

    def trained(*, spoil: bool) -> bytes:
        name, knobs = POLICIES[policy]
        with serving(workers=2, policy=name, overrides=knobs) as cluster:
            with connect(cluster.hosts, name="a") as a, connect(cluster.hosts, name="b") as b:
                grants = begun(a, b)
                (slot,) = a.slot_flat(grants[0])
                slot[...] = gradient(a, 1)[0]
                a.push_flat(grants[0], [slot])
                a.commit(grants[0], samples=1, ready=False)
                # It is not answered: the other's might be decided first.
                wait_until(lambda: cluster.status().committed == 1, "the commit to come")
                if spoil:
                    slot[...] = spoilt
                b.push_flat(grants[1], gradient(b, 1))
                b.commit(grants[1], samples=1, ready=True)
                again = granted(b)
                assert again.version == 1
                values = b.pull_flat(again)[0].tobytes()
                b.abandon(again, "enough")
                return values

    assert trained(spoil=True) == trained(spoil=False)
