"""A slot of shared memory can be written into after its commit: nothing that is not finite is published for it."""

import numpy as np
import pytest

from pswire.exits import ExitCode
from tests.service.serving import serving, wait_until
from tests.shm.sessions import connect, gradient, granted


@pytest.mark.parametrize("policy", ["median", "trimmed-mean"])
def test_what_is_compared_is_what_was_received(policy: str) -> None:
    """Robust policies copy: who was chosen cannot become another."""
    knobs = ("policy.trim=0",) if policy == "trimmed-mean" else ()
    with serving(policy=policy, overrides=knobs) as cluster, connect(cluster.hosts) as session:
        grant = granted(session)
        before = session.pull_flat(grant)[0]
        (slot,) = session.slot_flat(grant)
        (values,) = gradient(session, 1)
        slot[...] = values
        session.push_flat(grant, [slot])
        slot[...] = np.nan
        session.commit(grant, samples=1, loss=1.0)
        again = granted(session)
        after = session.pull_flat(again)[0]
        end = session.plan.shards[0].trainable
        assert (after[:end] == before[:end] - values[:end]).all()
        session.abandon(again, "enough")


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_a_slot_that_is_spoilt_between_push_and_commit_is_not_published(policy: str) -> None:
    with serving(policy=policy) as cluster, connect(cluster.hosts) as session:
        grant = granted(session)
        (slot,) = session.slot_flat(grant)
        slot[...] = 0.5
        session.push_flat(grant, [slot])
        slot[3] = np.nan
        session.commit(grant, samples=1, loss=1.0)
        served = cluster.servers[0]
        wait_until(lambda: served.probe.host.state.diverged, "the update to be refused")
        shard = served.probe.shard
        assert shard.version == 0
        assert np.isfinite(shard.arena.values(0)).all()  # type: ignore[arg-type]
        # It is told so, or that all are done, if it asks before the update is executed.
        session.done()
        assert "version 1 would not be finite (nan at kernel[0, 3])" in str(served.probe.host.state.failure)
    assert served.ended() == ExitCode.DIVERGED
