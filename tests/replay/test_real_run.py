"""Real processes, a real model: an asynchronous run executed again, equal to the bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.runs.folder import Run
from psserver.decisions import entries
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def replay(folder: Path, *options: str) -> dict[str, Any]:
    """In a process of its own: TensorFlow's threads are settled once per process."""
    command = [sys.executable, "-m", "pslab", "replay", str(folder), "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.nightly
def test_a_run_that_fetched_ahead(tmp_path: Path) -> None:
    """Two open tickets of each worker: the log passes all checks, and is executed again to the same bits."""
    document = {
        "run": {"seed": 6, "deterministic": True},
        "cluster": {"servers": 2, "workers": 2, "prefetch": True},
        "policy": {"name": "async"},
        "job": {"module": "tests/replay/dropout_digits.py:DropoutDigits", "epochs": 1},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=tmp_path / "run")
    assert finished.result.ok, finished
    run = Run(finished.folder)
    assert check_run(run).ok
    grants = [entry.fact for entry in run.decisions() if isinstance(entry.fact, entries.Grant)]
    assert sum(grant.ahead for grant in grants) > len(grants) / 2
    found = replay(finished.folder)
    assert found["equal"] is True and found["weights_sha256"] == run.summary.weights_sha256
    assert found["agreed"] == found["computed"] > 10


# Every worker and the replay load TensorFlow. The run that fetches ahead is under async, too.
POLICIES = usually(
    [("rennala", 3, "int4/bfloat16")],
    soak=[("async", 4, "bfloat16"), ("async", 4, "int8"), ("k-sync", 3, "bfloat16"), ("rennala", 4, "int8")],
)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "workers", "wire_dtype"), POLICIES)
def test_dropout_and_batch_normalisation_in_a_narrow_dtype(
    tmp_path: Path, name: str, workers: int, wire_dtype: str
) -> None:
    policy: dict[str, Any] = {"name": name} | ({"aggregate": 2} if name != "async" else {})
    document = {
        "run": {"seed": 5, "deterministic": True},
        "cluster": {"servers": 2, "workers": workers, "wire_dtype": wire_dtype},
        "policy": policy,
        "optimizer": {"name": "from-job"},
        "job": {"module": "tests/replay/dropout_digits.py:CompiledDigits", "epochs": 1},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=tmp_path / "run")
    assert finished.result.ok, finished
    run = Run(finished.folder)
    found = replay(finished.folder)
    assert found["equal"] is True and found["first_difference"] is None
    assert found["weights_sha256"] == run.summary.weights_sha256
    assert found["version"] == run.summary.versions > 5
    assert run.summary.optimizer["name"] == "adam" and run.summary.metrics["accuracy"] > 0.1
    # Random numbers depend on every step before: nothing can be left out.
    assert found["agreed"] == found["computed"] and found["skipped"] == 0
