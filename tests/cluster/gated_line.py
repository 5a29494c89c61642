"""A job of a few numbers whose data waits for files, so that a test can kill a server behind a known batch."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from psworker import Job

# Of each worker, in one epoch.
BATCHES = 15
# Seconds between two looks at a file.
LOOK_EVERY = 0.02


class GatedLine(Job):
    # STEP=FILE STEP=FILE: before that batch of all epochs a worker waits for the file.
    gates: str = ""

    def model(self):
        return {"weights": tf.Variable(tf.zeros([3])), "bias": tf.Variable(0.0)}

    def dataset(self, worker_index, worker_count, seed):
        gates = {int(step): Path(file) for step, _, file in (g.partition("=") for g in self.gates.split())}

        def batches(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for number in range(BATCHES):
                gate = gates.get(epoch * BATCHES + number)
                while gate is not None and not gate.exists():
                    threading.Event().wait(LOOK_EVERY)
                x = np.random.default_rng([seed, epoch, worker_index, number]).normal(size=(8, 3)).astype("f")
                yield x, x.sum(1) + 1.0

        return batches

    def loss(self, model, batch):
        x, y = batch
        return tf.reduce_mean(tf.square(tf.linalg.matvec(x, model["weights"]) + model["bias"] - y))
