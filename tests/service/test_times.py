"""What workers say of their time, from a training loop to the log's entries."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from psserver.coordinator.outputs import Record
from psserver.decisions.entries import Commit
from pswire import running
from pswire.v1 import coordinator_pb2 as pb
from psworker import loop
from tests.links import connect_link
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import Cluster, granted, serving, wait_until

START = {"w": np.ones((300, 7), np.float32)}
STEP, DELAY = 0.01, 0.015


@contextmanager
def commits_of(cluster: Cluster) -> Iterator[list[Commit]]:
    """Entries of the log from now on."""
    found: list[Commit] = []

    def keep(record: Record) -> None:
        if isinstance(record.entry, Commit):
            found.append(record.entry)

    with pytest.MonkeyPatch.context() as monkeypatch:
        cluster.servers[0].probe.on_record(monkeypatch, keep)
        yield found


@dataclass
class Result:
    payloads: list[np.ndarray]
    loss: float = 0.5
    norm: float = 1.0
    samples: int = 8


class Trainer:
    narrow = False

    def batches(self, *_: int) -> Iterator[tuple[int, int]]:
        return iter([(number, number) for number in range(6)])

    def step(self, flats: list[np.ndarray], batch: int) -> Result:
        threading.Event().wait(STEP)
        return Result([np.zeros_like(flat) for flat in flats])

    def evaluate(self, flats: list[np.ndarray]) -> dict[str, float]:
        return {}


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and worker are one process: where it is starved, the server's clock counts less than the system's."""
    monkeypatch.setattr("pswire.running.now", running.system)


def pause() -> None:
    threading.Event().wait(DELAY)


@promise("Every second of a worker is counted once.")
@pytest.mark.parametrize(
    ("transport", "servers", "prefetch"), [("grpc", 2, False), ("grpc", 1, True), ("shared-memory", 2, True)]
)
def test_a_training_loop_tells_them(transport: str, servers: int, prefetch: bool) -> None:
    """An injected delay is computing. That all fits between the entries is for `ps-lab check` to say."""
    with (
        serving(servers=servers, policy="async") as cluster,
        commits_of(cluster) as commits,
        connect_link(cluster.hosts, START, transport=transport, prefetch=prefetch) as session,
    ):
        loop.train(session, Trainer(), 1, lambda *_: None, pause)
        assert len(commits) == 6
        for commit in commits:
            assert commit.pull is not None and commit.pull >= 0
            assert commit.compute is not None and commit.compute >= 0.9 * (STEP + DELAY)
            assert commit.before is None or commit.before >= 0


def test_so_does_a_loop_of_ones_own_in_four_calls() -> None:
    """What it does between commit and ready is before the ticket."""
    with (
        serving(servers=2) as cluster,
        commits_of(cluster) as commits,
        connect_link(cluster.hosts, START) as session,
    ):
        for _ in range(3):
            grant = granted(session)
            session.pull(grant)
            pause()
            session.push(grant, {})
            session.commit(grant, samples=1)
            threading.Event().wait(STEP)
        # It goes by the session stream.
        wait_until(lambda: len(commits) == 3, "three commits")
        assert commits[0].before is None
        assert all(c.compute is not None and c.compute >= 0.9 * DELAY for c in commits)
        assert all(c.before is not None and c.before >= 0.9 * STEP for c in commits[1:])


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({}, (None, None, None)),
        ({"times": pb.Times()}, (0.0, 0.0, None)),
        ({"times": pb.Times(pull=1e-9, compute=2e-9, before=2.5)}, (1e-9, 2e-9, 2.5)),
        # More than has passed since the grant: left out.
        ({"times": pb.Times(pull=1e-9, compute=1e9, before=2.5)}, (None, None, None)),
    ],
    ids=["nothing", "no time", "short", "impossible"],
)
def test_a_generated_client_may_tell_them_or_not(times: Any, told: tuple[Any, ...]) -> None:
    with serving(2) as cluster, commits_of(cluster) as commits, Peer(cluster) as peer:
        grant = peer.ready()
        values = [np.ones(spec.shape, np.float32) for spec in peer.plan.variables]
        peer.commit(grant.ticket, peer.push(grant, values), **times)
        peer.grant = None
        assert peer.settled().fate == pb.Disposition.FATE_APPLIED
        (commit,) = commits
        assert (commit.pull, commit.compute, commit.before) == told
