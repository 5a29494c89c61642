"""`ps-lab status --watch` on a real cluster."""

import subprocess
import sys

import pytest

from tests.cluster.cluster import ROOT, Cluster
from tests.patience import PATIENCE


@pytest.mark.cluster
def test_the_command_follows_a_cluster_to_its_end(cluster: Cluster) -> None:
    cluster.start_servers(1, "--policy", "sync", "--workers", "1")
    watching = subprocess.Popen(
        [sys.executable, "-m", "pslab", "status", cluster.hosts, "--watch"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    first = watching.stdout.readline()
    cluster.start_worker("--task-index", "0", "--batches", "20")
    cluster.wait_end(worker_codes=[0])
    _, errors = watching.communicate(timeout=2 * PATIENCE)
    assert "waiting for workers" in first
    assert watching.returncode == 0 and "the server is gone" in errors


def test_an_address_where_nothing_is(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pslab", "status", "127.0.0.1:1", "--watch"],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "nothing listens on 127.0.0.1:1" in done.stderr
