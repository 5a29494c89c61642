"""A job with replicas whose model has sparse tables: rows go on with the copy that takes over, and come with a copy."""

from pathlib import Path

import numpy as np
import pytest

from pslab.replay import Replay
from pslab.replay.records import read_records
from pslab.runs.folder import Run
from pslab.simulator.problems.problem import NumpyTrainer
from pswire.model.tables import TableSpec
from psworker.link import Link
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.replicated import (
    GATE,
    MORE,
    committed_once,
    end,
    killed_and_started_again,
    open_gates,
    sha256,
    start,
    undisturbed,
    wait_for_the_gate,
    wait_state,
)
from tests.cluster.tables_worker import problem
from tests.links import connect_link
from tests.promises import promise
from tests.repetitions import usually

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

ITEMS = TableSpec("items", 3, "uniform", (-1.0, 1.0), 4, admit=0.7)


def replays(cluster: Cluster, batches: int = MORE) -> None:
    """The run replays to the bit, with the rows that came and went."""
    run = cluster.checked_run()
    replay = Replay(read_records(run), NumpyTrainer(problem(batches)), epochs=1)
    assert replay.run().first is None
    assert replay.store.sha256() == run.summary.weights_sha256


@promise(
    "A job whose servers are killed one after the other ends with the rows of one without a loss, and replays "
    "to the bit."
)
@pytest.mark.parametrize("transport", usually(["grpc"], soak=["auto"]))
def test_both_copies_are_killed_one_after_the_other_and_rows_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """Workers that do not share memory with the server read rows early, and later what has changed."""
    monkeypatch.setenv("PS_TRANSPORT", transport)
    expected = undisturbed(tmp_path / "alone", 0, MORE, tables=True)
    counted, chance, *_ = Run(tmp_path / "alone" / "run").summary.tables
    assert counted.evicted and counted.refused and chance.refused and chance.rows
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "killed").mkdir()
    with Cluster(tmp_path / "killed") as cluster:
        start(cluster, "sync", batches=MORE, tables=True)
        wait_for_the_gate(cluster, GATE)
        killed_and_started_again(cluster, 0, "sync")
        # It gets its copy, with rows, while the others train.
        open_gates(cluster, "gate")
        wait_state(cluster, 1, 0, "in sync")
        killed_and_started_again(cluster, 1, "sync")
        wait_state(cluster, 0, 1, "in sync")
        end(cluster)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)
        replays(cluster)


@pytest.mark.nightly
def test_rows_are_looked_up_on_the_server_that_leads_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    ids = np.arange(12)
    with Cluster(tmp_path) as cluster:
        every = ("--workers", "1", "--policy", "async", "--out", str(cluster.out), "--replicas", "2")
        cluster.start_servers(3, timeout=60.0, every=every)
        with connect_link(cluster.hosts, {"w": np.ones(4)}, state=[], tables=[ITEMS]) as session:
            steps(session, 6)
            # The status has a version once it is decided.
            wait_until(
                lambda: session.lookup("items", ids)[1] == 6, "the version in which they are looked up"
            )
            wait_state(cluster, 0, 1, "in sync")
            before, version = session.lookup("items", ids)
            cluster.servers[0].kill()
            after, later = session.lookup("items", ids)
            assert version == later == 6 and np.array_equal(before, after)
            steps(session, 3)
            changed, _ = session.lookup("items", ids)
            assert not np.array_equal(after, changed)


def steps(session: Link, count: int) -> None:
    for _ in range(count):
        grant = session.ready()
        assert grant is not None
        ids = np.arange(grant.version, grant.version + 6)
        session.pull(grant, rows={"items": ids})
        session.push(grant, {"w": np.ones(4)}, rows={"items": (ids, np.ones((6, 3)))})
        session.commit(grant, samples=1, loss=0.5)
