"""What real workers tell of their time is in the log, and fits it."""

import pytest

from pslab.runs.work import COMPUTING, WAITING
from tests.cluster.cluster import Cluster, entries_of
from tests.lab.waits import spent

pytestmark = pytest.mark.cluster

STEPS = (0.004, 0.02)


def test_every_commit_tells_its_times(cluster: Cluster) -> None:
    """`wait_end` asks `ps-lab check`: they fit between the coordinator's entries. Behind a barrier the fast wait."""
    cluster.start_servers(2, "--policy", "sync", "--workers", "2")
    for index, seconds in enumerate(STEPS):
        cluster.start_worker("--task-index", str(index), "--batches", "20", "--seconds", str(seconds))
    run = cluster.wait_end(worker_codes=[0, 0])
    commits = entries_of(run, "commit")
    assert len(commits) == 40
    for commit in commits:
        assert commit["pull"] >= 0
        assert commit["compute"] >= 0.9 * STEPS[int(commit["worker"][1:])]
    seconds = spent(run)
    # 16 ms a step, whatever the machine does besides: the slow one computes for so much longer.
    assert seconds["w0", WAITING] > 0 and seconds["w1", COMPUTING] >= 20 * 0.9 * STEPS[1]
