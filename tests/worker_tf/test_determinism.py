"""Same seed, same bits, in another process. The setting concerns a whole process, hence the children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[2]

# In the child itself: with `preexec_fn` this process would fork, of which JAX warns where another test has loaded it.
BEFORE = """
import os, sys, warnings
os.sched_setaffinity(0, map(int, sys.argv[1:]))
warnings.simplefilter("error", UserWarning)
"""

TRAIN = """
from psworker.keras.jobs.trainer import JobTrainer  # before keras: it knows how to keep TensorFlow quiet
import sys, hashlib, keras, numpy as np
from psworker.job import Job
from pswire.model.plan import make_plan

class Net(Job):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    def model(self):
        l = keras.layers
        return keras.Sequential([
            keras.Input((16, 16, 3)), l.Conv2D(8, 3), l.BatchNormalization(), l.ReLU(), l.MaxPool2D(),
            l.Dropout(0.2), l.Flatten(), l.Dense(64, "relu"), l.Dense(10)])
    def dataset(self, worker_index, worker_count, seed):
        r = np.random.default_rng(seed)
        return [(r.normal(size=(32, 16, 16, 3)).astype("f"), r.integers(0, 10, 32)) for _ in range(8)]

trainer = JobTrainer(Net(), device="cpu", seed=5, deterministic=True)
plan = make_plan([spec for spec, _ in trainer.specs], 2)
trainer.attach(plan)
flats = plan.scatter([value for _, value in trainer.specs])
for _, batch in trainer.batches(0, 1, 9, 2):
    gradients = trainer.step(flats, batch).flats
    flats = [flat - np.float32(0.1) * g for flat, g in zip(flats, gradients)]
print(hashlib.sha256(b"".join(flat.tobytes() for flat in flats)).hexdigest())
"""


def trained_in_a_child(cores: set[int], *program: str) -> tuple[str, str]:
    """(digest of the trained weights, what the child wrote to stderr)."""
    command = [sys.executable, *program, *map(str, cores)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert child.returncode == 0, child.stderr
    return child.stdout, child.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot choose cores here")
@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_reruns_are_bit_equal_on_any_number_of_cores_and_quiet(tmp_path, forked):
    """Both children may be forks of a process that has loaded TensorFlow, unless one is to load it itself."""
    cores = os.sched_getaffinity(0)
    script = tmp_path / "train.py"
    script.write_text(BEFORE + TRAIN)
    first, chatter = trained_in_a_child(cores, *([str(script)] if forked else ["-c", BEFORE + TRAIN]))
    second, _ = trained_in_a_child({min(cores)}, str(script))
    assert first == second
    assert chatter == ""


# A metric makes variables, and so starts TensorFlow, as the module is imported.
EARLY = """
import keras
from psworker import Job

class Early(Job):
    loss = "mse"
    metrics = [keras.metrics.F1Score()]
    def model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    def dataset(self, worker_index, worker_count, seed):
        return []
"""

LOADED = """
import logging, sys
logging.basicConfig(format="%(message)s")
import tensorflow as tf
from psworker.trainers import load_trainer
from pslab.experiment import Experiment
if "late" in sys.argv:
    tf.zeros(3) + 1
for wanted in (False, True):
    document = {"run": {"deterministic": wanted}, "job": {"module": "early.py:Early"}}
    if wanted == ("deterministic" in sys.argv):
        print(load_trainer(Experiment.parse(document), "auto").device)
print(tf.config.threading.get_intra_op_parallelism_threads())
"""


@pytest.mark.parametrize(
    ("words", "threads", "said"),
    [
        (["deterministic"], "1", ""),
        (
            ["deterministic", "late"],
            "0",
            "TensorFlow has already started in this process, so it keeps its threads",
        ),
    ],
    ids=["one thread before the job's module", "falls back with a sentence"],
)
def test_threads_of_a_worker(tmp_path, words, threads, said):
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "loaded.py").write_text(LOADED)
    child = subprocess.run(
        [sys.executable, str(tmp_path / "loaded.py"), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["cpu", threads]
    assert child.stderr.count("TensorFlow has already started") == bool(said), child.stderr
    assert said in child.stderr
