"""Servers that are killed at a rename, and again while they read what they go on from. Chosen calls of the disk, not
chance, say when."""

import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import JsonDisplay
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run
from tests.cluster.cluster import PATIENCE, entries_of
from tests.cluster.fault_points import marker
from tests.promises import promise

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 8
# Nobody is lost who is only kept from running: of a round without it the weights would be others.
LONG = 10 * PATIENCE
# While a part or the manifest gets its name, behind a first checkpoint; and in what the restarted process does next: it
# writes its generation's name, and reads its part.
KILLS = {
    "shard": ("1:rename:server-1.json", "1:open:server-1.safetensors"),
    "coordinator": (
        "0:rename:manifest.json",
        "0:rename:generation",
        "0:open:server-0.safetensors",
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
    return run_real(experiment, JsonDisplay(), LocalLauncher(), out=folder / "run", daemons=daemons)


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
