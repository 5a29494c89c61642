"""One training step over flat weights: flat payloads in, flat payloads out, one `tf.function` between.

Every payload is one vector per shard, laid out by the plan as [trainable |
state], in float32 or in the dtype in which it travels. In: the weights of one
version. Out, in the same dtypes: the gradient of the batch's mean loss where
the weights were trainable, and the change of the values (after - before) where
they are state. All arithmetic is as if the weights had come as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from pswire.model.plan import Plan
from pswire.transport.wire import wire_named
from psworker.data.payloads import Payload, array_of
from psworker.tensorflow.casts import payload_of, tensor_of
from psworker.tensorflow.flats import FlatLayout
from psworker.tensorflow.objectives.processing import Processing
from psworker.tensorflow.objectives.training import Objective
from psworker.tensorflow.variables import ModelVariables

Body = Callable[[list[Any], Any], Any]


class Traces:
    """`body(flats, batch)` as concrete functions, traced as rarely as the batches allow.

    Axis 0 of every array in a batch has no fixed size, so that a short last
    batch needs no new trace. Batches that differ in another axis (sequences of
    varying length) open that axis in a second trace, which then serves them all.
    Payloads of other dtypes have traces of their own. `eager`: no trace, the
    body runs as it stands; `jit`: traces are compiled by XLA.
    """

    def __init__(self, body: Body, flat_sizes: list[int], *, eager: bool = False, jit: bool = False) -> None:
        self._body = body
        self._eager, self._jit = eager, jit
        self._sizes = flat_sizes
        # Dtypes of the payloads -> (batch spec, tf.function), most open last.
        self._traced: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}

    @property
    def count(self) -> int:
        """Traces made so far."""
        return sum(map(len, self._traced.values()))

    def __call__(self, flats: list[Any], batch: Any) -> Any:
        """`body`'s result; arrays in `batch` become tensors."""
        batch = tf.nest.map_structure(_tensor, batch)
        if self._eager:
            return self._body(flats, batch)
        return self._for(tuple(flat.dtype for flat in flats), batch)(flats, batch)

    def _for(self, dtypes: tuple[Any, ...], batch: Any) -> Any:
        traced = self._traced.setdefault(dtypes, [])
        for spec, function in reversed(traced):
            if _fits(spec, batch):
                return function
        spec = _open(tf.nest.map_structure(_spec, batch), traced)
        flats = [tf.TensorSpec([size], dtype) for size, dtype in zip(self._sizes, dtypes, strict=True)]
        function = tf.function(
            self._body, input_signature=[flats, spec], jit_compile=self._jit, autograph=False
        )
        traced.append((spec, function))
        return function


def _open(spec: Any, traced: list[tuple[Any, Any]]) -> Any:
    """`spec`, with every axis open in which it differs from an earlier one of its kind."""
    for earlier, _ in traced:
        if _same_structure(earlier, spec):
            both = [
                new.most_specific_common_supertype([old])
                for new, old in zip(tf.nest.flatten(spec), tf.nest.flatten(earlier), strict=True)
            ]
            if None not in both:  # None: another dtype or rank
                spec = tf.nest.pack_sequence_as(spec, both)
    return spec


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.SparseTensor | tf.RaggedTensor) else tf.convert_to_tensor(value)


def _spec(tensor: Any) -> Any:
    """The tensor's type, its sample axis open."""
    spec = tf.type_spec_from_value(tensor)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _fits(spec: Any, batch: Any) -> bool:
    if not _same_structure(spec, batch):
        return False
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(batch), strict=True)
    return all(one.is_compatible_with(tensor) for one, tensor in pairs)


def _same_structure(one: Any, other: Any) -> bool:
    try:
        tf.nest.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return True


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


@dataclass(frozen=True)
class Group:
    """Several batches of one contribution: the mean of their gradients, all of the same weights."""

    batches: tuple[Any, ...]


class FlatStep:
    """Weights and a batch to gradients; the variables of the model are its scratch.

    Gradients come out dense, and in float32 until they are rounded for the wire, whatever the variable's dtype:
    zeros for a variable that the loss does not reach, duplicates summed for
    sparse ones (embeddings). Nothing scales the loss: a model under Keras'
    "mixed_bfloat16" policy needs no scaling; under "mixed_float16" small
    gradients are rounded to zero on their way back through float16 layers
    unless the loss is kept large (`loss_scale_factor` of a compiled optimizer does).

    `objective`: a batch's loss and gradients; `process`: what is done to the
    mean of `process.every` of them before it is pushed, which is what a `Group` has.
    """

    def __init__(
        self,
        plan: Plan,
        model: ModelVariables,
        objective: Objective,
        process: Processing,
        *,
        eager: bool = False,
        jit: bool = False,
    ) -> None:
        self._plan = plan
        self._layout = FlatLayout(plan, model)
        self._model = model
        self._objective, self._process = objective, process
        sizes = [shard.elements for shard in plan.shards]
        self._traces = Traces(self._compute, sizes, eager=eager, jit=jit)
        # Of the batches of a group before its last: sums of losses and of gradients.
        trained = model.variables[: model.trainable] if process.every > 1 else ()
        shapes = [(), *(variable.shape for variable in trained)]
        self._sums = [tf.Variable(tf.zeros(shape), trainable=False) for shape in shapes]
        self._begun = Traces(self._begin, sizes, eager=eager, jit=jit)
        self._continued = Traces(self._continue, sizes, eager=eager, jit=jit)
        self._ended = Traces(self._end, sizes, eager=eager, jit=jit)

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
            narrow = wire_named(dtype).array_dtype
            self([flat.astype(narrow, copy=False) for flat in flats], batch)
        for variable, value in zip(self._model.local, kept, strict=True):
            variable.assign(value)

    def __call__(self, flats: list[Flat], batch: Any) -> StepResult:
        """One step; `flats` is one payload per shard of the plan: float32, float16 or bfloat16."""
        tensors = [tensor_of(flat) for flat in flats]
        if not isinstance(batch, Group):
            out, loss, norm = self._traces(tensors, batch)
            return StepResult(
                [payload_of(parts) for parts in out], float(loss), float(norm), count_samples(batch)
            )
        first, *between, last = batch.batches
        self._begun(tensors, first)
        for each in between:
            self._continued(tensors, each)
        out, loss, norm = self._ended(tensors, last)
        samples = sum(map(count_samples, batch.batches))
        return StepResult([payload_of(parts) for parts in out], float(loss), float(norm), samples)

    # Traced. Order: weights in, forward and backward, state out (automatic control dependencies keep reads and
    # writes of a variable in this order).

    def _compute(self, flats: list[Any], batch: Any) -> tuple[list[list[Any]], Any, Any]:
        before = self._take(flats)
        loss, gradients = self._objective(batch)
        return self._finish(flats, before, loss, gradients)

    def _begin(self, flats: list[Any], batch: Any) -> None:
        self._take(flats)
        loss, gradients = self._objective(batch)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign(value)

    def _continue(self, flats: list[Any], batch: Any) -> None:
        loss, gradients = self._objective(batch)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(value)

    def _end(self, flats: list[Any], batch: Any) -> tuple[list[list[Any]], Any, Any]:
        loss, gradients = self._objective(batch)
        added = zip(self._sums, [loss, *gradients], strict=True)
        loss, *gradients = [(value + total) / self._process.every for total, value in added]
        return self._finish(flats, self._layout.cut(flats), loss, gradients)

    def _take(self, flats: list[Any]) -> list[Any]:
        """Weights into the model; returns them, as tensors."""
        before = self._layout.cut(flats)
        for variable, value in zip(self._model.variables, before, strict=True):
            variable.assign(value)
        return before

    def _finish(
        self, flats: list[Any], before: list[Any], loss: Any, gradients: list[Any]
    ) -> tuple[list[list[Any]], Any, Any]:
        gradients = self._process(gradients)
        state = self._model.variables[self._model.trainable :]
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
