"""A cancel that comes close behind its grant finds the worker still waiting for that grant."""

import numpy as np
import pytest

import psworker
from psworker.errors import Voided
from tests.service.fickle import EVERY, Fickle
from tests.service.serving import granted, serving

STEPS = 24


@pytest.mark.parametrize("servers", [1, 2])
def test_the_worker_asks_again(servers: int) -> None:
    """Whether it hears of grant and cancel in one message or in two is chance; it goes on either way."""
    with serving(servers, policy=f"{Fickle.__module__}:{Fickle.__name__}") as cluster:
        with psworker.connect(cluster.hosts, {"w": np.ones(4, np.float32)}) as session:
            done, void = 0, 0
            while done < STEPS:
                grant = granted(session)
                try:
                    weights = session.pull_flat(grant)
                    session.contribute(grant, [np.zeros_like(w) for w in weights], samples=1, ready=True)
                    done += 1
                except Voided as reason:
                    assert grant.ticket % EVERY == 0
                    session.abandon(grant, str(reason))
                    void += 1
            session.done()
        assert cluster.servers[0].probe.coordinator.version == STEPS
        assert void <= STEPS
