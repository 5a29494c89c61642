"""Policies whose parts see tensors, on real servers: what a real shard makes of real payloads."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from psserver.options import Options
from psserver.policies import PolicyError
from psserver.settings import resolve
from psworker.link import Link
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

START = {"w": np.zeros((7, 3), np.float32), "b": np.ones(5, np.float32)}


def push_all(sessions: Sequence[Link], gradients: Sequence[float]) -> None:
    """One round: everybody is granted, everybody pushes a constant, everybody commits."""

    def one(session: Link, value: float) -> None:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        session.push(grant, {name: np.full_like(start, value) for name, start in START.items()})
        session.commit(grant, samples=1)

    threads = [
        threading.Thread(target=one, args=each, daemon=True) for each in zip(sessions, gradients, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def weights(cluster: Cluster, sessions: Sequence[Link], version: int) -> dict[str, np.ndarray]:
    wait_until(lambda: cluster.status().version == version, f"version {version}")
    grant = sessions[0].ready()
    assert grant is not None and grant.version == version
    found = {name: values.copy() for name, values in sessions[0].pull(grant).items()}
    sessions[0].abandon(grant, "it only looks")
    return found


@pytest.mark.parametrize(
    ("policy", "servers", "knobs", "step"),
    [
        ("median", 2, (), 0.25),
        ("trimmed-mean", 3, ("policy.trim=1",), (0.125 + 0.25 + 0.5) / 3),
        ("krum", 1, ("policy.byzantine=1",), 0.125),
    ],
)
def test_an_attackers_gradient_does_not_count(
    policy: str, servers: int, knobs: tuple[str, ...], step: float
) -> None:
    """More payloads come in at once than the staging limit would admit under a sum."""
    names = [f"w{rank}" for rank in range(5)]
    with serving(servers, workers=5, policy=policy, overrides=knobs) as cluster:
        sessions = [connect_link(cluster.hosts, START, name=name) for name in names]
        push_all(sessions, [0.0, 0.125, 0.25, 0.5, 1e6])
        found = weights(cluster, sessions, 1)
        for name, start in START.items():
            np.testing.assert_allclose(found[name], start - np.float32(step), rtol=1e-6)
        for session in sessions:
            session.close()


def test_krum_with_two_servers_is_refused_at_the_start(sentences: Recorder) -> None:
    options = Options(
        ps_hosts="127.0.0.1:0,127.0.0.1:1",
        task_index=0,
        overrides=["cluster.workers=5", "policy.name=krum"],
    )
    with sentences.raises(PolicyError):
        resolve(options, None)
