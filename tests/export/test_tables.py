"""A job whose rows are tables: a real asynchronous run, executed again to the bit, exported to plain Keras."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.runs.folder import Run
from tests.promises import promise

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PLAIN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import keras
from films_data import films
x, liked = films("generated", "heldout")
model = keras.models.load_model(sys.argv[2])
print(json.dumps(model.evaluate(x, liked, batch_size=512, return_dict=True, verbose=0)))
assert not {"psworker", "psserver", "pswire", "pslab"} & sys.modules.keys()
"""


def said(*command: str) -> dict[str, float]:
    """What a process prints as its last line, in JSON."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@promise(
    "Examples: two towers learn as in one process and are replayed; clicks come near the best possible AUC."
)
def test_two_towers_learn_are_replayed_and_are_a_plain_model_in_the_end(tmp_path: Path) -> None:
    document = {
        "run": {"seed": 3},
        "cluster": {"servers": 2, "workers": 2},
        "policy": {"name": "async"},
        "optimizer": {"name": "adagrad", "learning_rate": 0.3},
        "job": {"module": "examples/two_tower.py:TwoTower", "epochs": 3, "options": {"data": "generated"}},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=tmp_path / "run")
    assert finished.result.ok, finished
    run = Run(finished.folder)
    assert check_run(run).ok
    replayed = said("-m", "pslab", "replay", str(run.path), "--json")
    assert replayed["equal"] is True and replayed["weights_sha256"] == run.summary.weights_sha256
    assert replayed["agreed"] == replayed["computed"] > 100
    written = said("-m", "pslab", "export", str(run.path), "--to", str(tmp_path / "plain.keras"), "--json")
    assert written["rows"]["people"] == 300 and written["rows"]["film_kinds"] == 4  # type: ignore[index]
    found = said("-c", PLAIN, str(ROOT / "examples"), str(tmp_path / "plain.keras"))
    assert run.summary.metrics["auc"] > 0.6
    # A film that nobody rated before has zeros there, and its initial row in the run.
    assert found["auc"] == pytest.approx(run.summary.metrics["auc"], abs=0.005)
