"""Real processes under a deadline: timers fire, and the run is executed again to the bit."""

from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.runs.folder import Run
from pswire.decisions import entries
from tests.promises import promise
from tests.replay.test_real_run import ROOT, replay

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]


@promise("A real run with timers replays to the bit.")
def test_a_run_with_timers(tmp_path: Path) -> None:
    """Every gradient is its own update, made a millisecond after its commit: so each update follows on a timer."""
    document = {
        "run": {"seed": 6, "deterministic": True},
        "cluster": {"servers": 2, "workers": 2},
        "policy": {"name": "fedbuff-timeout", "aggregate": 1000, "timeout": 0.001},
        "job": {"module": "tests/replay/dropout_digits.py:DropoutDigits", "epochs": 1},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=tmp_path / "run")
    assert finished.result.ok, finished
    run = Run(finished.folder)
    assert check_run(run).ok
    kinds = [type(entry.fact) for entry in run.decisions()]
    assert kinds.count(entries.Timer) >= kinds.count(entries.Apply) - 1 > 5
    found = replay(finished.folder)
    assert found["equal"] is True and found["weights_sha256"] == run.summary.weights_sha256
