"""Session streams break again and again: nothing is lost, nothing counts twice, nobody waits for ever."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from psserver.coordinator.status import JobReport
from psworker.engine import Grant, Stop
from tests.asking import ask
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import ONES, PATIENCE, Cluster, granted, serving, wait_until

BATCHES = 12


def sessions() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "session"}


@pytest.fixture(scope="module", autouse=True)
def before() -> set[threading.Thread]:
    """What other files have left in this process."""
    return sessions()


def reported(cluster: Cluster) -> JobReport:
    return ask(cluster.servers[0].server.runtime, cluster.servers[0].probe.job.report)


def work(cluster: Cluster, name: str, abandon_every: int) -> Stop:
    """All batches of one worker. It asks with its commit, now and then gives a ticket back, and says done."""
    with connect_link(cluster.hosts, ONES, name=name) as session:
        batch = 0
        for step in range(10 * BATCHES):
            if batch == BATCHES:
                break
            grant = granted(session)
            if step % abandon_every == 0:
                session.abandon(grant, "test")
                continue
            session.push(grant, {"dense/bias": np.ones(4)})
            session.commit(
                grant, samples=1, loss=0.5, batch=batch, ready=batch + 1 < BATCHES and step % 3 > 0
            )
            batch += 1
        return session.done()


@promise("Retries never apply a gradient twice and never lose one.")
def test_lines_that_break_at_every_version() -> None:
    # Of which a third is theirs to come back.
    overrides = [f"cluster.worker_timeout={3 * PATIENCE}"]
    with (
        serving(workers=2, policy="async", overrides=overrides) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):
        ends: list[Future[Stop]] = [
            pool.submit(work, cluster, "anna", 7),
            pool.submit(work, cluster, "berta", 5),
        ]
        seen = 0

        def moved() -> bool:
            return reported(cluster).version > seen or all(end.done() for end in ends)

        while not all(end.done() for end in ends):
            wait_until(moved, "a new version")
            seen = reported(cluster).version
            cluster.servers[0].probe.end_sessions()
        stops = [end.result(PATIENCE) for end in ends]
        assert all(stop.success for stop in stops)
        report = reported(cluster)
        counts = {w.name: (w.committed, w.applied, w.dropped, w.incarnation) for w in report.workers}
        assert counts == {"anna": (BATCHES, BATCHES, 0, 0), "berta": (BATCHES, BATCHES, 0, 0)}


@pytest.mark.parametrize("way", ["session", "exchange"])
def test_a_line_that_breaks_at_the_barrier(way: str) -> None:
    """The grant is decided while the line is down, and told when it stands again, or by the exchange that waits."""
    with (
        serving(workers=2, policy="sync") as cluster,
        connect_link(cluster.hosts, ONES, name="anna") as anna,
        connect_link(cluster.hosts, ONES, name="berta") as berta,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = pool.submit(anna.ready), pool.submit(berta.ready)
        grants = [ask.result(PATIENCE) for ask in asked]
        assert grants[0] is not None and grants[1] is not None
        mine = grants[0]

        def waits() -> Grant | None:
            if way == "session":
                anna.push(mine, {"dense/bias": np.ones(4)})
                anna.commit(mine, samples=1)
            else:
                anna.contribute(mine, anna.pull_flat(mine), samples=1, ready=True)
            return anna.ready()

        waiting = pool.submit(waits)
        wait_until(
            lambda: "waiting" in {w.state for w in reported(cluster).workers},
            "the barrier",
        )
        cluster.servers[0].probe.end_sessions()
        berta.push(grants[1], {"dense/bias": np.ones(4)})
        berta.commit(grants[1], samples=1)
        following = waiting.result(PATIENCE)
        assert following is not None and following.version == 1


def test_threads_are_gone(before: set[threading.Thread]) -> None:
    """The tests above have closed what they opened."""
    wait_until(lambda: not sessions() - before, "sessions to end")
