"""Real servers of which one has no folder for checkpoints."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.saved import saved

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 40
SYNC = ("--workers", "2", "--policy", "sync", "--optimizer", "adam", "--learning-rate", "0.05")


def test_a_folder_that_takes_no_checkpoint_ends_no_training(cluster: Cluster) -> None:
    """Server 1 has no folder."""
    cluster.start_servers(2, *SYNC, "--checkpoint-every", "5 versions")
    for index in range(2):
        cluster.start_worker("--batches", str(BATCHES), "--task-index", str(index))
    run = cluster.wait_end(worker_codes=[0, 0])
    assert run.summary.success
    assert "is NOT saved: server 1 has no folder for checkpoints" in cluster.servers[0].errors
    assert saved(cluster) == []
