"""Prefetch: the next version is on its way while the present one is computed on; the same training otherwise."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psworker import loop
from psworker.data.payloads import Pieces
from psworker.engine import Grant
from psworker.link import Link
from tests.comparing import same
from tests.links import connect_link
from tests.probes import SessionProbe
from tests.promises import promise
from tests.service.serving import PATIENCE, Cluster, granted, serving, wait_until

START = {"w": np.ones((300, 7), np.float32), "b": np.zeros(7, np.float32)}


def connect(cluster: Cluster, transport: str, *, prefetch: bool = True, name: str | None = None) -> Link:
    return connect_link(cluster.hosts, START, transport=transport, prefetch=prefetch, name=name)


@dataclass
class Result:
    payloads: list[np.ndarray]
    loss: float = 0.5
    norm: float = 1.0
    samples: int = 8


@dataclass
class Trainer:
    """Its gradients depend on what it reads. `during(number)` is called while a step is computed."""

    batches_of: int
    during: Any = lambda number: None
    narrow: bool = False
    seen: list[bytes] = field(default_factory=list)

    def batches(self, *_: int) -> Iterator[tuple[int, int]]:
        return iter([(number, number) for number in range(self.batches_of)])

    def step(self, flats: list[np.ndarray], batch: int) -> Result:
        before = [flat.tobytes() for flat in flats]
        self.during(batch)
        assert same([flat.tobytes() for flat in flats], before), "what is read has changed"
        self.seen += before
        return Result([flat * np.float32(0.1) + np.float32(batch) for flat in flats])

    def evaluate(self, flats: list[np.ndarray]) -> dict[str, float]:
        return {}


def train(session: Link, trainer: Trainer) -> loop.Outcome:
    return loop.train(session, trainer, 1, lambda *_: None)


def fetched(session: Link) -> bool:
    """The next version is here, and the present ticket is not committed."""
    return SessionProbe(session).fetched


@promise("With prefetch the next version arrives during the computation.")
@pytest.mark.parametrize(("transport", "servers"), [("grpc", 2), ("socket", 1), ("shared-memory", 2)])
def test_the_next_version_arrives_during_the_computation(transport: str, servers: int) -> None:
    """Every computation but the last waits for it: were it not so, this would hang."""
    with serving(servers=servers, policy="async") as cluster, connect(cluster, transport) as session:

        def during(number: int) -> None:
            if number < 5:
                wait_until(lambda: fetched(session), "the next version")

        outcome = train(session, Trainer(6, during))
        assert outcome.steps == 6
        assert cluster.servers[0].probe.staleness("w0") == {0: 1, 1: 5}
        # Nothing is asked for that is not used: the initial values and six batches.
        assert cluster.servers[0].probe.tickets == 7


@pytest.mark.parametrize(("policy", "transport"), [("sync", "grpc"), ("ssp", "shared-memory")])
def test_where_the_policy_grants_nothing_ahead_it_is_as_without(policy: str, transport: str) -> None:
    def seen(prefetch: bool) -> list[bytes]:
        with (
            serving(policy=policy) as cluster,
            connect(cluster, transport, prefetch=prefetch) as session,
        ):
            trainer = Trainer(5)
            assert train(session, trainer).steps == 5
            assert cluster.servers[0].probe.applied("w0") == 5
            return trainer.seen

    assert same(seen(True), seen(False))


@pytest.mark.parametrize(
    ("policy", "transport", "servers"),
    [
        ("async", "grpc", 2),
        ("sync", "shared-memory", 2),
    ],
)
def test_two_workers_at_once(policy: str, transport: str, servers: int) -> None:
    """What is read never changes while it is read, and every contribution has its fate."""
    with serving(servers=servers, workers=2, policy=policy) as cluster:
        outcomes: dict[str, loop.Outcome] = {}

        def work(name: str) -> None:
            with connect(cluster, transport, name=name) as session:
                outcomes[name] = train(session, Trainer(12))

        threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in ("w0", "w1")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(outcomes) == 2, "a worker is still waiting"
        assert all(outcome.stop is not None and outcome.stop.success for outcome in outcomes.values())
        assert {outcome.steps for outcome in outcomes.values()} == {12}


def test_a_ticket_that_is_given_back_leaves_the_next_one() -> None:
    """A batch without a finite gradient: the version that was fetched meanwhile serves the next batch."""
    with serving(policy="async") as cluster, connect(cluster, "grpc") as session:
        first = granted(session)
        with session.view_flat(first):
            session.prefetch(first)
            wait_until(lambda: fetched(session), "the next version")
        session.abandon(first, "nonfinite")
        second = granted(session)
        assert second.ticket == first.ticket + 1
        with session.view_flat(second) as (weights,):
            session.contribute(second, [np.zeros_like(weights)], samples=1)


@promise("With --prefetch a version comes in while a payload goes out, and comes once.")
@pytest.mark.parametrize(("transport", "wire_dtype"), [("grpc", "float32"), ("socket", "int8/int8")])
def test_a_version_comes_in_while_a_payload_goes_out(transport: str, wire_dtype: str) -> None:
    """Each payload but the last waits for it: were both on one lane, this would hang."""
    start = {"w": np.ones((300, 7), np.float32)}
    with (
        serving(policy="async") as cluster,
        connect_link(
            cluster.hosts, start, transport=transport, prefetch=True, wire_dtype=wire_dtype
        ) as session,
    ):
        probe = SessionProbe(session)
        for step in range(5):
            grant = granted(session)
            with session.view_flat(grant) as (weights,):
                values = np.full_like(weights, 0.5)

            def made(values: np.ndarray = values, grant: Grant = grant) -> np.ndarray:
                session.prefetch(grant)
                wait_until(lambda: probe.fetched, "the next version")
                return values

            payload = Pieces([made if step < 4 else lambda values=values: values], values.size)
            session.contribute(grant, [payload], samples=1, ready=step < 4)
        session.done()
        assert cluster.servers[0].probe.staleness("w0") == {0: 1, 1: 4}


def test_no_commit_overtakes_the_one_before(tmp_path: Path) -> None:
    """Which is on its way by the session's stream, as after a lost answer, when the next ticket is in hand already."""
    with (
        serving(policy="async", out=tmp_path) as cluster,
        connect_link(
            cluster.hosts,
            {"w": np.ones((9, 50), np.float32)},
            transport="socket",
            prefetch=True,
            wire_dtype="int8",
        ) as session,
    ):
        payload = [np.ones(450, np.float32)]
        for _ in range(30):
            grant = granted(session)
            with session.view_flat(grant):
                session.prefetch(grant)
                wait_until(lambda: fetched(session), "the next version")
            session.push_flat(grant, payload)
            session.commit(grant, samples=1, ready=True)
            session.contribute(granted(session), payload, samples=1)
        session.done()
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    commits = [line for line in lines if line["kind"] == "commit"]
    tickets = [line["ticket"] for line in commits]
    assert tickets == sorted(tickets) and len(tickets) == 60
    assert [line.get("residual") for line in commits] == [None, *tickets[:-1]]


def test_a_commit_does_not_wait_for_the_worker_that_makes_it(caplog: pytest.LogCaptureFixture) -> None:
    """The version granted ahead comes by the stream that the commit is on, and the update needs its buffer."""
    with serving(workers=2, arena_versions=2, policy="async", read_limit=PATIENCE) as cluster:
        with connect(cluster, "grpc", name="w0") as a, connect(cluster, "grpc", name="w1") as b:
            with ThreadPoolExecutor(2) as pool:
                grant, others = pool.map(granted, (a, b), timeout=PATIENCE)
            weights, same = a.pull_flat(grant), b.pull_flat(others)
            with SessionProbe(a).shard().carrier.turn:
                a.prefetch(grant)
                wait_until(lambda: SessionProbe(a).grant_after(grant.ticket) is not None, "the next grant")
                b.contribute(others, same, samples=1)
                a.contribute(grant, weights, samples=1, ready=True)
            ahead = granted(a)
            assert ahead.version == 0
            assert a.pull_flat(ahead)[0].tobytes() == weights[0].tobytes()
            probe = cluster.servers[0].probe
            wait_until(lambda: probe.version == 2, "the update that had to wait")
    assert "taken back" not in caplog.text


FORGETFUL = """
import sys
import numpy as np
import psworker
session = psworker.connect(sys.argv[1], {"w": np.ones(10, np.float32)}, prefetch=True)._link
grant = session.ready()
session.pull_flat(grant)
session.prefetch(grant)
raise SystemExit(3)
"""


@pytest.mark.cluster
def test_a_program_that_does_not_close_its_session_ends() -> None:
    with serving(policy="sync") as cluster:
        command = [sys.executable, "-c", FORGETFUL, cluster.hosts]
        ended = subprocess.run(command, timeout=4 * PATIENCE, check=False, cwd=Path(__file__).parents[2])
        assert ended.returncode == 3
