"""Real processes with local rules, dropout and BatchNorm: the log is in order, and replays to the bit."""

from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.runs.folder import Run
from tests.repetitions import usually
from tests.replay.test_real_run import ROOT, replay

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

SGD = {"name": "sgd"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # 23 batches of each of two workers and epoch: 69 batches are 14 tickets of 5, the last one of 4.
    "local-sgd": ({"steps": 5, "learning_rate": 0.1}, SGD | {"learning_rate": 1.0}, 14),
    "easgd": ({"steps": 5, "learning_rate": 0.1}, SGD | {"learning_rate": 1.0}, 14),
    "dana-slim": ({"momentum": 0.8}, SGD | {"learning_rate": 0.02}, 69),
}


# Every run loads TensorFlow three times. What others remember of a step, easgd remembers too.
@pytest.mark.parametrize("name", usually(["easgd"], soak=list(CASES)))
def test_a_run_is_in_order_and_replays_to_the_bit(tmp_path: Path, name: str) -> None:
    knobs, optimizer, tickets = CASES[name]
    document = {
        "run": {"seed": 5, "deterministic": True},
        "cluster": {"servers": 2, "workers": 2},
        "policy": {"name": name, **knobs},
        "optimizer": optimizer,
        "job": {"module": "tests/replay/dropout_digits.py:DropoutDigits", "epochs": 3},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=tmp_path / "run")
    assert finished.result.ok, finished
    run = Run(finished.folder)
    verdict = check_run(run)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    assert {worker: n.committed for worker, n in run.summary.contributions.items()} == {
        "w0": tickets,
        "w1": tickets,
    }
    assert run.summary.metrics["accuracy"] > 0.7
    found = replay(finished.folder)
    assert found["equal"] is True and found["first_difference"] is None
    assert found["agreed"] == found["computed"] == 2 * tickets and found["skipped"] == 0
