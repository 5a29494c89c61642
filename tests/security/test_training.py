"""Training under mutual TLS is the same training; whoever is killed comes back under it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.cluster.cluster import Cluster, entries_of, wait_until
from tests.promises import promise
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster

pytestmark = pytest.mark.cluster

WORKERS, BATCHES = 3, 3


@pytest.fixture
def cluster(tmp_path: Path, identities: Identities) -> Iterator[ProtectedCluster]:
    with ProtectedCluster(tmp_path, identities) as cluster:
        yield cluster


def trained(cluster: Cluster, transport: str) -> Run:
    """Two servers, three workers, sync: their sum has an order of its own, so that runs repeat."""
    cluster.start_servers(2, "--policy", "sync", "--workers", str(WORKERS))
    for index in range(WORKERS):
        chosen = ("--task-index", str(index), "--batches", str(BATCHES), "--transport", transport)
        cluster.start_worker(*chosen)
    return cluster.wait_end(worker_codes=[0] * WORKERS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint of the weights without TLS."""
    with Cluster(tmp_path_factory.mktemp("plain")) as cluster:
        return str(trained(cluster, "grpc").summary.weights_sha256)


@promise("Training under TLS gives the same weights; killed workers and servers come back.")
@pytest.mark.parametrize("transport", ["grpc", "socket", "shared-memory"])
def test_the_weights_are_those_of_a_run_without_tls(
    cluster: ProtectedCluster, plain: str, transport: str
) -> None:
    """Acceptance 2."""
    run = trained(cluster, transport)
    assert run.summary.weights_sha256 == plain and run.summary.versions == BATCHES
    assert json.loads((run.path / "summary.json").read_text())["security"] == "tls"
    for process in (*cluster.servers, *cluster.workers):
        assert "Traceback" not in process.errors


def test_a_killed_worker_comes_back(cluster: ProtectedCluster) -> None:
    cluster.start_servers(1, "--policy", "async", timeout=10.0)
    end = cluster.folder / "end"
    steps = ("--until", str(end), "--seconds", "0.01")
    first = cluster.start_worker(*steps)
    cluster.wait_more()
    first.kill()
    # The same certificate, another process.
    again = cluster.launch(
        "worker-0", "-m", "tests.cluster.numpy_worker", "--ps-hosts", cluster.hosts, *steps
    )
    cluster.workers.append(again)
    assert again.wait_event("joined")["worker"] == "w0"
    cluster.wait_more()
    end.touch()
    run = cluster.wait_end(worker_codes=[-signal.SIGKILL, 0])
    assert [entry["incarnation"] for entry in entries_of(run, "join")] == [0, 1]


def test_a_lost_server_comes_back(cluster: ProtectedCluster) -> None:
    """Server 1 is killed and started again: the job goes on from its checkpoint, and the worker joins again."""
    every = ("--out", str(cluster.out), "--resume", "auto", "--checkpoint-every", "5 versions")
    cluster.start_servers(2, every=every)
    end = cluster.folder / "end"
    worker = cluster.start_worker("--until", str(end), "--seconds", "0.01")
    cluster.wait_version(12)
    cluster.servers[1].kill()
    cluster.servers[1].close()
    hosts = ("--ps-hosts", cluster.hosts, "--task-index", "1", "--json", "--worker-timeout", "10")
    cluster.servers[1] = cluster.launch("server-1", "-m", "psserver", *hosts, *every)
    cluster.servers[0].wait_event("recovering")
    cluster.servers[1].wait_event("ready")
    wait_until(lambda: "joined again" in worker.errors, "the worker to join again")
    end.touch()
    run = cluster.wait_end(worker_codes=[0])
    assert len(entries_of(run, "restore")) == 1
