"""One experiment on ssh and Slurm over machines: as on this machine alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.engines.sites import ROOT, running
from tests.machines.clusters import PLACED, Spread, experiment

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 30
# What differs from run to run, and between a run on one machine and one on several.
OWN = ("job", "wall_seconds", "security")


def summary(run: Run) -> dict[str, object]:
    """What two runs of one experiment have in common; both pass `ps-lab check`."""
    assert check_run(run).ok
    record: dict[str, object] = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    assert record["weights_sha256"] and record["versions"] == BATCHES
    return {key: value for key, value in record.items() if key not in OWN}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Of the run on this machine."""
    folder = tmp_path_factory.mktemp("here")
    lab = [sys.executable, "-m", "pslab", "run", experiment(folder, "--batches", str(BATCHES))]
    done = subprocess.run(
        [*lab, "--out", str(folder / "run"), "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return summary(Run(folder / "run"))


def test_an_engine_over_machines_ends_with_the_same_weights(
    place: Spread, tmp_path: Path, here: dict[str, object]
) -> None:
    words = [experiment(tmp_path, "--batches", str(BATCHES)), "--out", str(tmp_path / "run"), *PLACED]
    with running(place.run(*words), place.environment) as run:
        servers = {str(run.until(f"server-{n}", "ready")["address"]).rpartition(":")[0] for n in range(3)}
        workers = {run.until(f"worker-{n}", "where")["host"] for n in range(4)}
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    # Each shard on a machine of its own.
    assert len(servers) == 3 and servers <= {machine.address for machine in place.machines.machines}
    assert len(workers) > 1 and workers <= {machine.name for machine in place.machines.machines}
    assert summary(Run(tmp_path / "run")) == here
    place.assert_nothing_left()
