"""`kill -9` of both servers, one after the other: the same ps-worker processes compute again what was rolled back."""

from collections import Counter
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.cluster.cluster import Cluster, entries_of
from tests.cluster.gated_line import BATCHES
from tests.cluster.saved import saved
from tests.cluster.test_recovery import again, gate, kill, start_servers

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

JOB, EPOCHS = "tests/cluster/gated_line.py:GatedLine", 2
# The versions at which servers are killed. The second is of epoch 1, the checkpoint before it of the end of epoch 0.
KILLS = {"first": 12, "second": 17}


def start(cluster: Cluster, *options: str) -> None:
    start_servers(cluster, 2)
    for index in range(2):
        cluster.start_ps_worker(JOB, "--task-index", str(index), "--epochs", str(EPOCHS), *options)


def undisturbed(folder: Path) -> Run:
    folder.mkdir()
    with Cluster(folder) as cluster:
        start(cluster)
        return cluster.wait_end(worker_codes=[0, 0])


def wait_saved(cluster: Cluster, version: int) -> None:
    """Until that version is made, behind which the workers wait, and the newest checkpoint before it is complete."""
    cluster.wait_for(lambda status: status.version == version, f"version {version}")
    cluster.wait_for(lambda _: saved(cluster)[-1:] == [version // 5 * 5], "it is saved")


def test_every_batch_counts_once_and_the_bits_are_those_of_a_run_in_which_nobody_died(
    cluster: Cluster, tmp_path: Path
) -> None:
    # Workers read a batch ahead.
    gates = " ".join(f"{version + 1}={gate(cluster, name)}" for name, version in KILLS.items())
    start(cluster, "--option", f"gates={gates}")
    for killed, (name, version) in zip((1, 0), KILLS.items(), strict=True):
        wait_saved(cluster, version)
        kill(cluster, killed, name)
        again(cluster, killed)
    run = cluster.wait_end(worker_codes=[0, 0])
    counted = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert counted == Counter({(f"w{n}", k): 1 for n in range(2) for k in range(EPOCHS * BATCHES)})
    back = [entry["version"] for entry in entries_of(run, "restore")]
    assert back == [10, 15]
    for index, worker in enumerate(cluster.workers):
        assert len(worker.events("joined")) == 1
        for batch in back:
            assert (
                f"the servers began again from a checkpoint: w{index} goes on at batch {batch}"
                in worker.errors
            )
    assert run.summary.weights_sha256 == undisturbed(tmp_path / "undisturbed").summary.weights_sha256
