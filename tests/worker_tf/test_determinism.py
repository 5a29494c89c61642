"""Same seed, same bits, in another process. The setting concerns a whole process, hence the children."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

TRAIN = """
from psworker.tensorflow import Trainer  # before keras: it knows how to keep TensorFlow quiet
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

trainer = Trainer(Net(), device="cpu", seed=5)
plan = make_plan([spec for spec, _ in trainer.specs], 2)
trainer.attach(plan)
flats = plan.scatter([value for _, value in trainer.specs])
for _, batch in trainer.batches(0, 1, 9, 2):
    gradients = trainer.step(flats, batch).flats
    flats = [flat - np.float32(0.1) * g for flat, g in zip(flats, gradients)]
print(hashlib.sha256(b"".join(flat.tobytes() for flat in flats)).hexdigest())
"""


def trained_in_a_child(cores: set[int]) -> tuple[str, str]:
    """(digest of the trained weights, what the child wrote to stderr)."""
    child = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", TRAIN],
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert child.returncode == 0, child.stderr
    return child.stdout, child.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot choose cores here")
def test_reruns_are_bit_equal_on_any_number_of_cores_and_quiet():
    cores = os.sched_getaffinity(0)
    first, chatter = trained_in_a_child(cores)
    second, _ = trained_in_a_child({min(cores)})
    assert first == second
    assert chatter == ""
