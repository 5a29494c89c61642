"""One worker has 60 batches, another 64: a barrier ends cleanly, and the log passes all checks."""

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

POLICIES = {"sync": ("--policy", "sync"), "backup": ("--policy", "sync", "--set", "policy.backup=1")}


@pytest.mark.parametrize("policy", POLICIES)
def test_uneven_data_ends_cleanly(cluster: Cluster, policy: str) -> None:
    cluster.start_servers(2, *POLICIES[policy], "--workers", "2")
    cluster.start_worker("--task-index", "0", "--batches", "60")
    cluster.start_worker("--task-index", "1", "--batches", "64")
    run = cluster.wait_end(worker_codes=[0, 0])
    summary = run.summary
    assert summary.success
    assert summary.reason == "all workers are done"
    counts = summary.contributions
    committed = {worker: count.committed for worker, count in counts.items()}
    applied = sum(count.applied for count in counts.values())
    assert all(count.pending == 0 for count in counts.values())
    assert applied == sum(summary.histogram.values())
    # Also under backup workers: what comes too late for its update is cancelled, and worked on again.
    assert committed == {"w0": 60, "w1": 64}
    assert applied == 124
    if policy == "backup":
        assert (summary.versions, dict(summary.histogram)) == (124, {0: 124})
    if policy == "sync":
        # 60 rounds of two, then four of one.
        assert (summary.versions, dict(summary.histogram)) == (64, {0: 124})
