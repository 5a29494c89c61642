"""Real training steps of ours: a model of programs/models.py as a job, through the worker's own Trainer."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.programs.models import MODELS, Batch
from pswire.model.plan import Plan
from psworker.data.payloads import Payload
from psworker.job import Job
from psworker.tensorflow import Trainer


class Bench(Job):
    """Bare variables and one batch, over and over."""

    name: str = "mlp"

    def model(self) -> list[Any]:
        return [tf.Variable(value, name=f"v{i}") for i, value in enumerate(MODELS[self.name].initial())]

    def dataset(self, worker_index: int, worker_count: int, seed: int) -> list[Batch]:
        return [MODELS[self.name].batch()]

    def loss(self, model: Any, batch: Any) -> Any:
        return MODELS[self.name].loss(model, batch)


class Trained:
    """The computation of one model; it may serve several sessions in turn."""

    def __init__(self, model: str) -> None:
        # Not deterministic: that would be one thread, and the peer has them all.
        self._trainer = Trainer(Bench(name=model), deterministic=False)
        self.variables: Any = self._trainer.specs
        self._batch = tuple(tf.constant(array) for array in MODELS[model].batch())
        self._attached: Plan | None = None

    def attach(self, plan: Plan) -> None:
        if self._attached is not None:
            assert plan == self._attached, "one model is measured on one layout"
            return
        self._trainer.attach(plan)
        self._attached = plan
        self(plan.scatter([value for _, value in self.variables]))

    def __call__(self, weights: list[np.ndarray]) -> list[Payload]:
        """Arrays when they are asked for: the work may still be under way on a device."""
        return self._trainer.step(weights, self._batch).payloads
