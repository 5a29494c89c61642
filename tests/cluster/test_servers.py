"""What becomes of everybody when a server goes, nobody comes, or a process may not take part."""

import signal
import socket
from pathlib import Path

import numpy as np
import pytest

import psworker
from pswire.exits import ExitCode
from psworker.data.shard_client import ShardClient
from psworker.errors import Unreachable
from tests.cluster.cluster import Cluster
from tests.probes import SessionProbe
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


def test_the_coordinator_is_named_when_another_server_is_missed_first(cluster: Cluster) -> None:
    """Servers end with their coordinator; whose absence a worker notices first is chance, and not the cause."""
    cluster.start_servers(2, "--workers", "1")
    with psworker.connect(cluster.hosts, {"w": np.zeros(4)}, server_timeout=2.0) as session:
        assert session.ready() is not None

        def missed(shard: ShardClient) -> None:
            if shard.server == 1:
                raise Unreachable("server 1 did not answer")

        with pytest.raises(Unreachable, match="server 1 did not"):
            SessionProbe(session).each_server(missed)
        cluster.servers[0].kill()
        assert cluster.servers[1].wait_exit() == 3
        wait_until(lambda: SessionProbe(session).requests is None, "the session to notice")
        with pytest.raises(Unreachable, match=f"server 0 at {cluster.addresses[0]} did not answer"):
            SessionProbe(session).each_server(missed)


def test_a_lost_server_is_told_to_a_worker_that_waits(cluster: Cluster, end_of_data: Path) -> None:
    """It need not find out by itself, and so does not spend its patience on it."""
    cluster.start_servers(2, "--workers", "2")
    waiting = cluster.start_worker("--task-index", "0", "--until", str(end_of_data))
    held = cluster.start_worker("--task-index", "1", "--until", str(end_of_data), "--hold", "computing@3")
    held.wait_event("held")
    cluster.wait_state("w0", "waiting")
    cluster.servers[1].kill()
    assert waiting.wait_exit() == 3
    assert f"server 1 at {cluster.addresses[1]} was lost" in waiting.wait_event("finished")["reason"]
    held.say("go")
    assert held.wait_exit() == 3
    assert cluster.servers[0].wait_exit() == 3


def test_a_worker_in_the_middle_of_a_push_ends_with_the_job(cluster: Cluster, end_of_data: Path) -> None:
    """It knows that a server was lost: whatever patience it has, nobody needs its payload any more."""
    cluster.start_servers(2, "--workers", "2")
    patient = ("--until", str(end_of_data), "--server-timeout", "3600")
    free = cluster.start_worker(*patient, "--task-index", "0")
    pushing = cluster.start_worker(*patient, "--task-index", "1", "--hold", "pushing@3")
    pushing.wait_event("held")
    cluster.servers[1].kill()
    lost = f"server 1 at {cluster.addresses[1]} was lost"
    assert free.wait_exit() == 3
    assert lost in free.wait_event("finished")["reason"]
    pushing.say("go")
    assert pushing.wait_exit() == 3
    assert lost in pushing.wait_event("finished")["reason"]
    assert cluster.servers[0].wait_exit() == 3


def test_without_workers_the_servers_give_up(cluster: Cluster) -> None:
    """By then they have met."""
    cluster.start_servers(2, "--idle-timeout", "4")
    for server in cluster.servers:
        assert server.wait_exit() == 7
        assert server.wait_event("stopped")["reason"] == "no worker for 4 s"
    assert not cluster.checked_run().summary.success


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_coordinator_takes_everybody_along(
    cluster: Cluster, end_of_data: Path, number: signal.Signals, code: int
) -> None:
    cluster.start_servers(2, "--workers", "1")
    worker = cluster.start_worker("--until", str(end_of_data))
    cluster.wait_version(5)
    cluster.servers[0].send(number)
    assert worker.wait_exit() == 3
    assert worker.wait_event("finished")["reason"] == f"stopped by {number.name}"
    assert [server.wait_exit() for server in cluster.servers] == [code, code]
    summary = cluster.checked_run().summary
    assert (summary.success, summary.reason) == (False, f"stopped by {number.name}")


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


def test_another_model_is_refused_by_name(cluster: Cluster, end_of_data: Path) -> None:
    cluster.start_servers(2, "--workers", "1")
    cluster.start_worker("--until", str(end_of_data))
    cluster.wait_version(3)
    other = cluster.start_worker("--elements", "1010", "--batches", "1")
    assert other.wait_exit() == 5
    message = other.wait_event("failed")["message"]
    assert "this job trains another model: variable 0: expected 'w' float32[100, 10]" in message
    assert "got 'w' float32[101, 10]" in message
    cluster.wait_more()
    end_of_data.touch()
    cluster.wait_end(worker_codes=[0, 5])


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
