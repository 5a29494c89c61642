"""Rows that are read in a checkpoint, where no server runs; and rows that were pushed, and never committed."""

from pathlib import Path

import numpy as np
import pytest

import pslab.runs
from pslab.runs.folder import RunError
from psserver.checkpoint import Store
from psworker.backends.lookups import LayerLookups
from tests.promises import promise
from tests.service.serving import granted, serving, wait_until
from tests.tables.test_sessions import ALL, DIM, ITEMS, connect, gradient, saved, step

ASKED = np.array([[0, 5, -7], [5, 2**62, 39]])


@promise("Where no server runs, a model reads its rows in a checkpoint.")
@pytest.mark.parametrize("servers", [1, 3])
def test_rows_of_a_checkpoint_are_those_that_servers_had(tmp_path: Path, servers: int) -> None:
    overrides = ["run.checkpoint_every=1 version", "optimizer.name=adagrad", "optimizer.learning_rate=0.5"]
    store, expected = Store(tmp_path / "checkpoints"), {}
    with serving(servers, out=tmp_path, shared=True, overrides=overrides) as cluster:
        with connect(cluster) as session:
            for version in (1, 2):
                assert step(session, version)
                wait_until(lambda v=version: saved(store, v), "the version to be saved")
                expected[version] = session.lookup("items", ASKED)
            session.done()
        for served in cluster.servers:
            served.ended()
    (first, *_), last = store.names(), tmp_path
    for folder, version in ((store.root / first, 1), (last, 2)):
        read = pslab.runs.rows(folder)
        rows, found = read("items", ASKED)
        assert found == version and np.array_equal(rows, expected[version][0])
        layer = LayerLookups(ITEMS, reader=read)
        assert np.array_equal(layer.read(ASKED), rows)
        assert layer.read(np.zeros((0, 2), np.int64)).shape == (0, 2, DIM)
        with pytest.raises(ValueError, match="no table is named 'item'.*items"):
            read("item", ASKED)


def test_where_there_is_no_checkpoint_with_rows_is_said(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "checkpoints" / "000000000001-x"):
        with pytest.raises(RunError):
            pslab.runs.rows(folder)


@promise("Rows of a worker that ends between push and commit count nowhere.")
def test_rows_of_a_worker_that_ends_before_its_commit_count_nowhere() -> None:
    with serving(2) as cluster, connect(cluster, "stays") as session:
        assert step(session, 1)
        wait_until(lambda: session.lookup("items", ALL)[1] == 1, "the first version")
        before = session.lookup("items", ALL)
        with connect(cluster, "ends") as other:
            grant = granted(other)
            ids, gradients = gradient(2)
            other.pull(grant, rows={"items": ids})
            other.push(grant, {}, rows={"items": (ids, gradients)})
        shards = [served.probe.shard for served in cluster.servers]
        wait_until(
            lambda: all(grant.ticket not in shard.staging.tickets for shard in shards),
            "the end of the ticket",
        )
        counts = [shard.tables.tables[0].state().count for shard in shards]
        after = session.lookup("items", ALL)
        assert after[1] == before[1] and np.array_equal(after[0], before[0])
        assert sum(each.sum() for each in counts) == np.unique(gradient(1)[0]).size
        assert step(session, 3)
