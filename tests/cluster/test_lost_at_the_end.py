"""A server is killed while the job ends: at each step of that, with a supervisor and without one."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import JsonDisplay
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run
from tests.cluster.cluster import entries_of
from tests.cluster.dying_server import COORDINATOR, SHARD
from tests.promises import promise
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 8
MOMENTS = [*COORDINATOR, *SHARD]
# Of a coordinator and of a shard, while weights are written; tests/world loses them at any moment.
FEW = ["weights", pytest.param("its part", marks=pytest.mark.nightly)]
NEVER = "never"


def run(folder: Path, moment: str, restarts: int, resume_from: str | None = None) -> FinishedRun:
    """Each batch of two workers makes one version."""
    experiment = Experiment.parse(
        {
            "run": {"name": "end", "checkpoint_every": "3 versions"},
            "cluster": {"servers": 2, "workers": 2, "worker_timeout": 10.0},
            "policy": {"name": "sync"},
            "optimizer": {"name": "adam", "learning_rate": 0.05},
            "job": {
                "script": "tests/cluster/numpy_worker.py",
                "arguments": ["--batches", str(BATCHES), "--server-timeout", "60" if restarts else "5"],
            },
        },
        "test",
    )
    server = (sys.executable, "-m", "tests.cluster.dying_server", moment, str(folder / "died"), str(BATCHES))
    worker = (sys.executable, "-m", "tests.cluster.numpy_worker")
    daemons = Daemons(server=server, script=worker, restarts=restarts)
    return run_real(
        experiment,
        JsonDisplay(),
        LocalLauncher(),
        out=folder / "run",
        daemons=daemons,
        resume_from=resume_from,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    folder = tmp_path_factory.mktemp("undisturbed")
    finished = run(folder, NEVER, 0)
    assert finished.result.ok and not (folder / "died").exists()
    return Run(finished.folder).summary.weights_sha256


def check_whole(folder: Path, undisturbed: str | None) -> None:
    """Every batch counts once, and the weights are those of a run that nobody disturbed."""
    found = Run(folder)
    assert found.summary.weights_sha256 == undisturbed is not None
    assert check_run(found).violations == ()
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(found, "commit"))
    assert set(commits.values()) == {1} and len(commits) == 2 * BATCHES


@promise("A process that dies while the job ends costs no work.")
@pytest.mark.parametrize("moment", usually(FEW, MOMENTS))
def test_what_is_lost_at_the_end_is_made_up_for(tmp_path: Path, undisturbed: str | None, moment: str) -> None:
    finished = run(tmp_path, moment, restarts=3)
    assert (tmp_path / "died").exists()
    assert finished.result.ok, (finished.result, finished.tail)
    check_whole(finished.folder, undisturbed)
