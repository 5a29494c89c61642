"""What these tests do again and again: make a job, give it a plan, take its step and a plain tape's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pswire.model.plan import make_plan
from psworker import Job
from psworker.backends.keras.variables import native
from psworker.keras.jobs.trainer import JobTrainer
from tests.probes import variables_of


class _Made(Job):
    loss = "mse"

    def __init__(self, build, batches, loss):
        super().__init__()
        self._build, self._batches = build, batches
        if loss is not None:
            self.loss = loss

    def model(self):
        return self._build()

    def dataset(self, worker_index, worker_count, seed):
        return self._batches


@pytest.fixture
def trained():
    """trained(build, batches, loss, servers) -> (attached trainer, plan, initial payloads)."""

    def make(build, batches=(), loss=None, servers=1):
        trainer = JobTrainer(_Made(build, batches, loss), device="cpu", seed=3, deterministic=False)
        plan = make_plan([spec for spec, _ in trainer.specs], servers)
        trainer.attach(plan)
        return trainer, plan, plan.scatter([value for _, value in trainer.specs])

    return make


@pytest.fixture
def plain_tape():
    """plain_tape(trainer, loss, batch) -> (loss, gradient per trained variable): the authority for a step."""

    def compute(trainer, loss, batch):
        found = variables_of(trainer).found
        trained = [native(v) for v in found.variables[: found.trainable]]
        with tf.GradientTape() as tape:
            value = loss(trainer.model, batch)
            if isinstance(trainer.model, keras.Model) and trainer.model.losses:
                value += tf.add_n(trainer.model.losses)
        found = tape.gradient(value, trained)
        dense = [
            np.zeros(v.shape, np.float32) if g is None else tf.convert_to_tensor(g).numpy().astype(np.float32)
            for g, v in zip(found, trained, strict=True)
        ]
        return float(value), dense

    return compute
