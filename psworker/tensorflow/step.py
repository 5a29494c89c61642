"""One training step over flat weights: flat payloads in, flat payloads out, one `tf.function` between.

Every payload is one vector per shard, laid out by the plan as [trainable |
state], in float32 or in the dtype in which it travels. In: the weights of one
version. Out, in the same dtypes: the gradient of the batch's mean loss where
the weights were trainable, and the change of the values (after - before) where
they are state. All arithmetic is as if the weights had come as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from pswire.model.plan import Plan
from pswire.transport.codecs import codec_named
from psworker.data.payloads import Payload, array_of
from psworker.tensorflow.casts import payload_of, tensor_of
from psworker.tensorflow.flats import FlatLayout
from psworker.tensorflow.losses import Loss
from psworker.tensorflow.signatures import Traces
from psworker.tensorflow.variables import ModelVariables

Flat = NDArray[Any]


@dataclass(frozen=True)
class StepResult:
    """What one batch gave."""

    payloads: list[Payload]  # per shard: [gradient | state delta]
    loss: float  # mean over the batch, regularisation included
    norm: float  # L2 norm of the gradient over all shards, before any rounding
    samples: int

    @property
    def flats(self) -> list[Flat]:
        """The payloads as arrays, not to be written."""
        return [array_of(payload) for payload in self.payloads]


class FlatStep:
    """Weights and a batch to gradients; the variables of the model are its scratch.

    Gradients come out dense, and in float32 until they are rounded for the wire, whatever the variable's dtype:
    zeros for a variable that the loss does not reach, duplicates summed for
    sparse ones (embeddings). Nothing scales the loss: a model under Keras'
    "mixed_bfloat16" policy needs no scaling; under "mixed_float16" small
    gradients are rounded to zero on their way back through float16 layers
    unless the job's loss keeps them large (Keras scales inside its own
    optimizers, which run on the servers here, without that step).
    """

    def __init__(self, plan: Plan, model: ModelVariables, loss: Loss) -> None:
        self._plan = plan
        self._layout = FlatLayout(plan, model)
        self._model = model
        self._loss = loss
        self._traces = Traces(self._compute, [shard.elements for shard in plan.shards])

    @property
    def traces(self) -> int:
        """How often the step was traced (each trace costs seconds for a large model)."""
        return self._traces.count

    def prepare(self, batch: Any, dtypes: Sequence[str] = ("float32",)) -> None:
        """Take a step, with weights of each of `dtypes`, that leaves nothing behind: building the graph makes
        the first one slow."""
        kept = [variable.read_value() for variable in self._model.local]
        for dtype in dtypes:
            flats = self._plan.scatter(self._model.values())
            narrow = codec_named(dtype).array_dtype
            self([flat.astype(narrow, copy=False) for flat in flats], batch)
        for variable, value in zip(self._model.local, kept, strict=True):
            variable.assign(value)

    def __call__(self, flats: list[Flat], batch: Any) -> StepResult:
        """One step; `flats` is one payload per shard of the plan: float32, float16 or bfloat16."""
        out, loss, norm = self._traces([tensor_of(flat) for flat in flats], batch)
        return StepResult([payload_of(flat) for flat in out], float(loss), float(norm), count_samples(batch))

    def _compute(self, flats: list[Any], batch: Any) -> tuple[list[Any], Any, Any]:
        """The traced body. Order: weights in, forward and backward, state out (automatic control
        dependencies keep reads and writes of a variable in this order)."""
        variables = self._model.variables
        before = self._layout.cut(flats)
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
        return (
            self._layout.join([*gradients, *deltas], [flat.dtype for flat in flats]),
            loss,
            tf.linalg.global_norm(gradients),
        )


def count_samples(batch: Any) -> int:
    """Length of axis 0 of the first array in `batch` that has one; 1 for a batch of bare numbers."""
    for leaf in tf.nest.flatten(batch):
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        if len(shape):
            return int(shape[0])
    return 1
