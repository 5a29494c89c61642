"""Servers that are killed at a rename, and again while they read what they go on from; signals while a checkpoint is
written. Chosen calls of the disk, not chance, say when."""

import signal
import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import JsonLines
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from pswire.exits import ExitCode
from tests.cluster.cluster import PATIENCE, Cluster, Process, entries_of, wait_until
from tests.cluster.fault_points import marker
from tests.promises import promise

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 8
# Nobody is lost who is only kept from running: of a round without it the weights would be others.
LONG = 10 * PATIENCE
# While a part or the manifest gets its name, behind a first checkpoint; and in what the restarted process does next: it
# writes its generation's name, and reads its part.
KILLS = {
    "shard": ("1:rename:server-1.json:kill", "1:open:server-1.safetensors:kill"),
    "coordinator": (
        "0:rename:manifest.json:kill",
        "0:rename:generation:kill",
        "0:open:server-0.safetensors:kill",
    ),
}


def run(folder: Path, points: tuple[str, ...]) -> FinishedRun:
    """Each batch of two workers makes one version. The fourth waits for a complete checkpoint: so there are others to
    come, whoever is slow."""
    folder.mkdir()
    arguments = [
        "--batches",
        str(BATCHES),
        "--gate",
        "3",
        str(folder / "complete"),
        "--server-timeout",
        str(LONG),
    ]
    experiment = Experiment.parse(
        {
            "run": {"name": "points", "checkpoint_every": "2 versions"},
            "cluster": {"servers": 2, "workers": 2, "worker_timeout": LONG, "recover_timeout": LONG},
            "policy": {"name": "sync"},
            "optimizer": {"name": "adam", "learning_rate": 0.05},
            "job": {"script": "tests/cluster/numpy_worker.py", "arguments": arguments},
        },
        "test",
    )
    server = (sys.executable, "-m", "tests.cluster.fault_points", str(folder), ",".join(points))
    worker = (sys.executable, "-m", "tests.cluster.numpy_worker")
    # A worker that hears of the job's end before the last kill is started again, too.
    daemons = Daemons(server=server, script=worker, restarts=len(points) + 2)
    return run_real(experiment, JsonLines(), LocalLauncher(), out=folder / "run", daemons=daemons)


@promise("A server may be killed at any step of a checkpoint and of its own recovery.")
def test_killed_at_a_rename_and_again_while_it_restores(tmp_path: Path) -> None:
    """Every batch counts once, whichever server it was, and both runs end with the same weights."""
    ended = []
    for name, points in KILLS.items():
        finished = run(tmp_path / name, points)
        assert all(marker(tmp_path / name, number).exists() for number in range(len(points)))
        assert finished.result.ok, (finished.result, finished.tail)
        found = Run(finished.folder)
        assert check_run(found).violations == ()
        commits = [(entry["worker"], entry["batch"]) for entry in entries_of(found, "commit")]
        assert len(commits) == len(set(commits)) == 2 * BATCHES
        ended.append(found.summary.weights_sha256)
    assert len(set(ended)) == 1 and ended[0] is not None


def serve(cluster: Cluster, point: str, *flags: str) -> Process:
    """One server, and a worker whose every batch makes a version. The fourth waits for a complete checkpoint (where the
    first one is held up, for the test), the seventh for the test."""
    folder = cluster.folder
    points = ("tests.cluster.fault_points", str(folder), point)
    options = ("--ps-hosts", "127.0.0.1:0", "--task-index", "0", "--json", "--out", str(cluster.out))
    saves = ("--policy", "sync", "--worker-timeout", str(LONG), "--checkpoint-every", "2 versions", *flags)
    server = cluster.launch(f"server{len(cluster.servers)}", "-m", *points, *options, *saves)
    cluster.servers.append(server)
    cluster.addresses = [server.wait_event("ready")["address"]]
    first = folder / ("go" if "first-" in point else "complete")
    gates = ("--gate", "3", str(first), "--gate", "6", str(folder / "go"))
    cluster.start_worker("--batches", str(BATCHES), "--task-index", "0", *gates)
    return server


def signalled(cluster: Cluster, server: Process) -> None:
    """The server has been told to end, and its log says so. The job was not over."""
    wait_until(marker(cluster.folder, 0).exists, "the checkpoint to be under way")
    server.send(signal.SIGTERM)
    log = cluster.out / "decisions.jsonl"
    wait_until(lambda: b'"kind":"stop"' in log.read_bytes(), "the job to be stopped")


def go_on(cluster: Cluster) -> None:
    """The run is taken up again, and comes to its end."""
    server = serve(cluster, "0:rename::kill", "--resume", "auto")
    assert cluster.workers[-1].wait_exit() == 0 and server.wait_exit() == 0, server.errors
    run = cluster.checked_run()
    assert run.summary.versions == BATCHES
    commits = [entry["batch"] for entry in entries_of(run, "commit")]
    assert sorted(commits) == list(range(BATCHES))


def test_sigterm_while_a_checkpoint_is_written(cluster: Cluster) -> None:
    """The one under way is completed, or a newer one in its place; the last one is of the last version."""
    server = serve(cluster, "0:rename:server-0.safetensors:first-hold")
    signalled(cluster, server)
    (cluster.folder / "go").touch()
    assert server.wait_exit() == ExitCode.TERMINATED, server.errors
    assert "Traceback" not in server.errors, server.errors
    store, version = Store(cluster.out / "checkpoints"), Run(cluster.out).summary.versions
    assert store.verify(store.names()[-1]).version == version < BATCHES
    # It may not have heard the end in time, and would look for its server.
    cluster.workers[-1].kill()
    go_on(cluster)


@pytest.mark.nightly
def test_ctrl_c_after_a_signal_ends_at_once(cluster: Cluster) -> None:
    """A disk that stands still holds up nobody; what was complete before is what the run goes on from."""
    server = serve(cluster, "0:rename:server-0.safetensors:hold")
    signalled(cluster, server)
    server.send(signal.SIGINT)
    assert server.wait_exit() == ExitCode.INTERRUPTED, server.errors
    assert "Traceback" not in server.errors, server.errors
    (cluster.folder / "go").touch()
    # It lost its server, and ends when none comes back at that address.
    cluster.workers[-1].kill()
    go_on(cluster)
