"""Models of real runs, loaded by a process that knows Keras and TensorFlow, and nothing of this project."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.runs.folder import Run

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]

# Run as it stands, at a place where nothing of this project can be imported by accident: one line for each path.
PLAIN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import keras, numpy as np, tensorflow as tf
from digits_data import digits
x, y = digits("heldout")
for path in sys.argv[2:]:
    if path.endswith(".keras"):
        model = keras.models.load_model(path)
        print(json.dumps(model.evaluate(x, y, batch_size=512, return_dict=True, verbose=0)))
    else:
        loaded = tf.saved_model.load(path)
        logits = getattr(loaded, "serve", loaded)(tf.constant(x))
        print(json.dumps({"accuracy": float(np.float32(np.mean(np.argmax(logits, axis=1) == y)))}))
assert not {"psworker", "psserver", "pswire", "pslab"} & sys.modules.keys()
"""


def trained(folder: Path, job: str) -> Run:
    document = {
        "run": {"seed": 3},
        "cluster": {"servers": 2, "workers": 2},
        "policy": {"name": "async"},
        "optimizer": {"name": "adam", "learning_rate": 0.003},
        "job": {"module": f"tests/export/cnn.py:{job}", "epochs": 2},
    }
    finished = run_real(Experiment.parse(document), Quiet(), LocalLauncher(ROOT), out=folder)
    assert finished.result.ok, finished
    return Run(finished.folder)


def export(run: Run, path: Path, *options: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "pslab", "export", str(run.path), "--to", str(path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def plain(*paths: Path) -> list[dict[str, Any]]:
    """What a process of its own finds of each model that was exported."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(ROOT / "examples"), *map(str, paths)],
        cwd=paths[0].parent, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_batchnorm_cnn_evaluates_to_the_bit_in_plain_keras(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "CNN")
    accuracy = run.summary.metrics["accuracy"]
    assert accuracy is not None and 0.2 < accuracy < 1
    names = ("last.keras", "earlier.keras", "saved_model", "by-hand.keras")
    last, earlier, saved, by_hand = (tmp_path / name for name in names)
    export(run, last)
    export(run, earlier, "--version", str(run.summary.versions - 1))
    export(run, saved)
    # As a run by hand is, whose folder does not name the job.
    (run.path / "experiment.toml").unlink()
    export(run, by_hand, "--job", "tests/export/cnn.py:CNN")
    of_last, of_earlier, of_saved, of_by_hand = plain(last, earlier, saved, by_hand)
    assert of_last["accuracy"] == accuracy
    assert of_last["loss"] == pytest.approx(run.summary.metrics["loss"], rel=1e-5)
    assert of_earlier.keys() >= {"accuracy", "loss"}
    assert of_saved == {"accuracy": accuracy}
    assert of_by_hand == of_last
