"""What becomes of everybody when a server goes, nobody comes, or a process may not take part."""

import signal
import socket
from pathlib import Path

import pytest

from pswire.exits import ExitCode
from tests.cluster.cluster import Cluster
from tests.service.serving import wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("lost", [0, 1])
def test_all_end_when_a_server_is_lost_and_say_which(cluster: Cluster, end_of_data: Path, lost: int) -> None:
    cluster.start_servers(3, "--workers", "2")
    for _ in range(2):
        cluster.start_worker("--until", str(end_of_data), "--server-timeout", "5")
    cluster.wait_version(5)
    cluster.servers[lost].kill()
    name = f"server {lost} at {cluster.addresses[lost]}"
    for worker in cluster.workers:
        assert worker.wait_exit() == 3
        told = worker.events("failed") or worker.events("finished")
        assert name in " ".join(map(str, told[0].values())), told
    for index, server in enumerate(cluster.servers):
        if index != lost:
            assert server.wait_exit() == 3
            reason = server.wait_event("stopped")["reason"]
            assert (name if lost else "the coordinator (server 0) is gone") in reason


def test_without_workers_the_servers_give_up(cluster: Cluster) -> None:
    """By then they have met."""
    cluster.start_servers(2, "--idle-timeout", "4")
    for server in cluster.servers:
        assert server.wait_exit() == 7
        assert server.wait_event("stopped")["reason"] == "no worker for 4 s"
    assert not cluster.checked_run().summary.success


def test_a_stopped_coordinator_takes_everybody_along(cluster: Cluster, end_of_data: Path) -> None:
    cluster.start_servers(2, "--workers", "1")
    worker = cluster.start_worker("--until", str(end_of_data))
    cluster.wait_version(5)
    cluster.servers[0].send(signal.SIGTERM)
    assert worker.wait_exit() == 3
    assert worker.wait_event("finished")["reason"] == "stopped by SIGTERM"
    assert [server.wait_exit() for server in cluster.servers] == [143, 143]
    summary = cluster.checked_run().summary
    assert (summary.success, summary.reason) == (False, "stopped by SIGTERM")


def test_endless_nan_ends_its_worker_and_nobody_else(cluster: Cluster) -> None:
    cluster.start_servers(2, "--workers", "2")
    cluster.start_worker("--batches", "30", "--task-index", "0")
    cluster.start_worker("--batches", "30", "--task-index", "1", "--nonfinite")
    run = cluster.wait_end(int(ExitCode.MISSING), worker_codes=[0, 8])
    assert not run.summary.success and set(run.summary.missing["batches"]) == {"w1"}
    failed = cluster.workers[1].wait_event("failed")
    assert failed["message"].startswith("10 batches in a row gave no finite gradient")
    counts = {count.applied for count in run.summary.contributions.values()}
    assert counts == {30, 0}


def test_a_worker_names_the_server_that_it_cannot_reach(cluster: Cluster) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, but nobody listens
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        cluster.addresses = [address]
        worker = cluster.start_worker("--batches", "3", "--server-timeout", "2")
        patient = cluster.start_worker("--batches", "3", "--server-timeout", "3600")
        assert worker.wait_exit() == 3
        wait_until(lambda: f"server 0 at {address} does not answer" in patient.errors, "it to say so")
    assert f"server 0 at {address} did not answer" in worker.wait_event("failed")["message"]
    assert "trying again in" in patient.errors
