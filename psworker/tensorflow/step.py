"""One training step over flat weights: flat payloads in, flat payloads out, one `tf.function` between.

Every payload is one float32 vector per shard, laid out by the plan as
[trainable | state]. In: the weights of one version. Out: the gradient of the
batch's mean loss where the weights were trainable, and the change of the
values (after - before) where they are state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pswire.plan import Plan
from psworker.tensorflow.losses import Loss
from psworker.tensorflow.signatures import Traces
from psworker.tensorflow.variables import ModelVariables

Flat = NDArray[np.float32]


@dataclass(frozen=True)
class StepResult:
    """What one batch gave."""

    flats: list[Flat]  # per shard: [gradient | state delta]
    loss: float  # mean over the batch, regularisation included
    norm: float  # L2 norm of the gradient over all shards
    samples: int


class FlatStep:
    """Weights and a batch to gradients; the variables of the model are its scratch.

    Gradients come out dense and in float32 whatever the variable's dtype:
    zeros for a variable that the loss does not reach, duplicates summed for
    sparse ones (embeddings). Nothing scales the loss: a model under Keras'
    "mixed_bfloat16" policy needs no scaling; under "mixed_float16" small
    gradients are rounded to zero on their way back through float16 layers
    unless the job's loss keeps them large (Keras scales inside its own
    optimizers, which run on the servers here, without that step).
    """

    def __init__(self, plan: Plan, model: ModelVariables, loss: Loss) -> None:
        self._plan = plan
        self._model = model
        self._loss = loss
        self._pieces = _pieces(plan)
        self._traces = Traces(self._compute, [shard.elements for shard in plan.shards])

    @property
    def traces(self) -> int:
        """How often the step was traced (each trace costs seconds for a large model)."""
        return self._traces.count

    def prepare(self, batch: Any) -> None:
        """Take a step that leaves nothing behind: building the graph makes the first one slow."""
        kept = [variable.read_value() for variable in self._model.local]
        self(self._plan.scatter(self._model.values()), batch)
        for variable, value in zip(self._model.local, kept, strict=True):
            variable.assign(value)

    def __call__(self, flats: list[Flat], batch: Any) -> StepResult:
        """One step; `flats` is one float32 payload per shard of the plan."""
        weights = [tf.convert_to_tensor(flat, tf.float32) for flat in flats]
        out, loss, norm = self._traces(weights, batch)
        return StepResult([flat.numpy() for flat in out], float(loss), float(norm), count_samples(batch))

    def _compute(self, flats: list[Any], batch: Any) -> tuple[list[Any], Any, Any]:
        """The traced body. Order: weights in, forward and backward, state out (automatic control
        dependencies keep reads and writes of a variable in this order)."""
        variables = self._model.variables
        before = self._cut(flats)
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        trained, state = variables[: self._model.trainable], variables[self._model.trainable :]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            loss = self._loss(batch)
        found = tape.gradient(loss, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.cast(tf.convert_to_tensor(gradient), tf.float32) for gradient in found]
        deltas = [
            tf.cast(variable.read_value(), tf.float32) - tf.cast(value, tf.float32)
            for variable, value in zip(state, before[self._model.trainable :], strict=True)
        ]
        return self._join([*gradients, *deltas]), loss, tf.linalg.global_norm(gradients)

    def _cut(self, flats: list[Any]) -> list[Any]:
        """Payloads to one tensor per variable, in its own shape and dtype."""
        values = []
        for variable, pieces in zip(self._model.variables, self._pieces, strict=True):
            parts = [flats[server][start:stop] for server, start, stop in pieces]
            whole = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            values.append(tf.cast(tf.reshape(whole, variable.shape), variable.dtype))
        return values

    def _join(self, values: list[Any]) -> list[Any]:
        """One float32 tensor per variable to payloads: each shard's rows, in the order of its slices."""
        specs = self._plan.variables
        rows = [tf.reshape(value, [spec.rows, -1]) for value, spec in zip(values, specs, strict=True)]
        flats = []
        for shard in self._plan.shards:
            parts = [rows[piece.variable][piece.start : piece.stop] for piece in shard.slices]
            flat = [tf.reshape(part, [-1]) for part in parts]
            flats.append(tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float32))
        return flats


def count_samples(batch: Any) -> int:
    """Length of axis 0 of the first array in `batch` that has one; 1 for a batch of bare numbers."""
    for leaf in tf.nest.flatten(batch):
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        if len(shape):
            return int(shape[0])
    return 1


def _pieces(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Per variable, where its elements lie: (server, start, stop) in that server's payload, in row order."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in plan.variables]
    for number, shard in enumerate(plan.shards):
        for piece in shard.slices:
            found[piece.variable].append((piece.start, number, piece.offset, piece.offset + piece.size))
    return [[(server, start, stop) for _, server, start, stop in sorted(pieces)] for pieces in found]
