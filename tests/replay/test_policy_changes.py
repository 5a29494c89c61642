"""Real processes under six policies in turn: the run is checked, and executed again to the bit."""

from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import Quiet
from pslab.launch.experiments import run_local
from pslab.runs.folder import Run
from pswire.config.experiment import parse_experiment
from tests.replay.test_real_run import ROOT, replay

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

PLAN = [
    {"after": "3 versions", "name": "async"},
    {"after": "20 %", "name": "fedbuff-timeout", "aggregate": 1000, "timeout": 0.001},
    {"after": "40 %", "name": "sync", "backup": 1},
    {"after": "60 %", "name": "ssp", "slack": 1},
    {"after": "80 %", "name": "bounded", "max_staleness": 1, "why": "to the end"},
]


def test_a_run_with_five_changes(tmp_path: Path) -> None:
    document = {
        "run": {"seed": 6, "deterministic": True},
        "cluster": {"servers": 2, "workers": 2},
        "policy": {"name": "sync", "then": PLAN},
        "job": {"module": "tests/replay/dropout_digits.py:DropoutDigits", "epochs": 2},
    }
    finished = run_local(parse_experiment(document), Quiet(), out=tmp_path / "run", cwd=ROOT)
    assert finished.result.ok, finished
    run = Run(finished.folder)
    assert check_run(run).ok
    changes = [entry for _, entry in run.fold().changes]
    assert [change.policy["name"] for change in changes] == [change["name"] for change in PLAN]
    assert {change.by for change in changes} == {"plan"} and changes[-1].why == "to the end"
    found = replay(finished.folder)
    assert found["equal"] is True and found["weights_sha256"] == run.summary.weights_sha256
