"""Batches to gradients on TensorFlow: the one step of jobs (`psworker.tensorflow`) and of `fit` (`psworker.keras`).

Every payload is one vector per shard, laid out by the plan as [trainable | state], in float32 or in the dtype in which
it travels. The weights of one version go in; out come, in the same layout, the gradient of the batch's mean loss where
the weights are trainable, and the change of the values (after - before) where they are state. All arithmetic is as if
the weights had come as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from pswire.model.plan import Plan
from pswire.transport.wire import wire_named
from psworker.backends import ModelError, StepResult, infinite_state
from psworker.backends.lookups import LookedUp
from psworker.backends.tensorflow.flats import FlatLayout, landing, payload_of, tensor_of
from psworker.backends.tensorflow.specs import Body
from psworker.backends.tensorflow.variables import ModelVariables

Flat = NDArray[Any]
# Of a batch, in the graph: anything beside (logs), its loss, and one float32 gradient per trained variable, and per
# trained table, for the rows of a `LookedUp`.
Objective = Callable[[Any], tuple[Any, Any, list[Any]]]


@dataclass(frozen=True)
class Group:
    """Several batches of one contribution: the mean of their gradients, all at the same weights."""

    batches: tuple[Any, ...]


class FlatStep:
    """One contribution from one batch, or from the mean of `every` batches; the model's variables are its scratch.

    Gradients are dense, and float32 until they are rounded for the wire, whatever the variable's dtype: zeros for a
    variable that the loss does not reach, duplicates summed for sparse ones (embeddings). Nothing here scales the
    loss: under Keras' "mixed_bfloat16" none is needed; under "mixed_float16" small gradients become zero on their way
    back through float16 layers unless the loss is kept large (`loss_scale_factor` of a compiled optimizer does).

    `objective` computes a batch's logs, loss and gradients. `process` changes the mean gradient before it is pushed
    (clipping). `trace` makes a body a function, a graph say. `dtypes`: the payloads' dtypes, one per server; by
    default those in which the weights come. `norm`: whether to compute the gradient's norm. A batch may be a
    `LookedUp`, with rows.
    """

    def __init__(
        self,
        plan: Plan,
        model: ModelVariables,
        objective: Objective,
        process: Callable[[list[Any]], list[Any]],
        trace: Callable[[Body], Any],
        *,
        every: int = 1,
        dtypes: Sequence[Any] | None = None,
        norm: bool = True,
    ) -> None:
        self._plan, self._model = plan, model
        self._layout = FlatLayout(plan, model)
        self._objective, self._process = objective, process
        self._every, self._dtypes, self._norm = every, dtypes, norm
        # Over the batches of a contribution before its last: sums of losses and of gradients, else zeros.
        trained = model.variables[: model.trainable] if every > 1 else ()
        shapes = [(), *(variable.shape for variable in trained)]
        self._sums = [tf.Variable(tf.zeros(shape), trainable=False) for shape in shapes]
        self._whole, self._last = trace(self._take_and_finish), trace(self._finish)
        self._first, self._next = trace(self._take_and_add), trace(self._add)

    @property
    def scratch(self) -> list[Any]:
        """Variables that a step changes beside the model's own."""
        return self._sums

    def prepare(self, batch: Any, dtypes: Sequence[str] = ("float32",)) -> None:
        """Take a step at weights of each of `dtypes`, and undo it: building the graph makes the first one slow."""
        changed = [*self._model.variables, *self._model.local]
        before = [variable.read_value() for variable in changed]
        constants = [(name, each, each.numpy()) for name, each in self._model.constants]
        for dtype in dtypes:
            flats = self._plan.scatter(self._model.values())
            narrow = wire_named(dtype).array_dtype
            self([flat.astype(narrow, copy=False) for flat in flats], batch)
        for name, variable, value in constants:
            if variable.numpy().tobytes() != value.tobytes():
                raise ModelError(infinite_state(name))
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)

    def __call__(self, flats: list[Flat], batch: Any) -> StepResult:
        """Put weights, one payload per shard of the plan (float32, float16 or bfloat16), into the model, and compute a
        batch or a `Group` at them."""
        tensors = [tensor_of(flat) for flat in flats]
        if not isinstance(batch, Group):
            return self._result(self._whole(tensors, fed(batch)), batch, count_samples(batch))
        first, *between, last = batch.batches
        self._first(tensors, first)
        for each in between:
            self._next(tensors, each)
        return self._result(self._last(tensors, last), last, sum(map(count_samples, batch.batches)))

    # With the weights in the model already: `tensors` are what they were made from.

    def trace(self, tensors: list[Any], batch: Any) -> None:
        """Build the graphs of a contribution's batches, of these types."""
        for function in (self._next, self._last) if self._every > 1 else (self._last,):
            function.get_concrete_function(tensors, fed(batch, open=True))

    def add(self, tensors: list[Any], batch: Any) -> Any:
        """Compute a batch before the last of a contribution; what the objective returns beside loss and gradients."""
        return self._next(tensors, batch)

    def finish(self, tensors: list[Any], batch: Any, samples: int) -> tuple[StepResult, Any]:
        """Compute the last batch of a contribution of `samples` samples. Returns that, and what `add` returns."""
        found = self._last(tensors, fed(batch))
        return self._result(found, batch, samples), found[-1]

    def _result(self, found: Any, batch: Any, samples: int) -> StepResult:
        payloads, loss, norm, rows, _ = found
        made = StepResult([payload_of(parts) for parts in payloads], float(loss), float(norm), samples)
        if isinstance(batch, LookedUp):
            made.rows.update(batch.gradients(landing(each)() for each in rows))
        return made

    # In the graph. Order: weights in, forward and backward, state out (automatic control dependencies keep reads and
    # writes of a variable in this order).

    def take(self, flats: list[Any]) -> None:
        """Put weights into the model."""
        for variable, value in zip(self._model.variables, self._layout.cut(flats), strict=True):
            variable.assign(value)

    def _take_and_finish(self, flats: list[Any], batch: Any) -> Any:
        self.take(flats)
        return self._finish(flats, batch)

    def _take_and_add(self, flats: list[Any], batch: Any) -> Any:
        self.take(flats)
        for total in self._sums:
            total.assign(tf.zeros(total.shape))
        return self._add(flats, batch)

    def _add(self, flats: list[Any], batch: Any) -> Any:
        logs, loss, gradients = self._objective(batch)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(value)
        return logs

    def _finish(self, flats: list[Any], batch: Any) -> tuple[list[list[Any]], Any, Any, list[Any], Any]:
        logs, loss, gradients = self._objective(batch)
        if self._every > 1:
            added = zip(self._sums, [loss, *gradients], strict=True)
            loss, *gradients = [(value + total) / self._every for total, value in added]
            for total in self._sums:
                total.assign(tf.zeros(total.shape))
        gradients = self._process(gradients)
        trained = self._model.trainable
        moved = zip(self._model.variables[trained:], self._layout.cut(flats, trained), strict=True)
        deltas = [
            tf.cast(variable.read_value(), tf.float32) - tf.cast(before, tf.float32)
            for variable, before in moved
        ]
        dtypes = self._dtypes or [flat.dtype for flat in flats]
        norm = tf.linalg.global_norm(gradients) if self._norm else tf.zeros(())
        dense, rows = gradients[:trained], gradients[trained:]
        return self._layout.join([*dense, *deltas], list(dtypes)), loss, norm, rows, logs


def fed(batch: Any, *, open: bool = False) -> Any:
    """Return what the graph gets of a batch. `open`: types instead of rows, of any number of them."""
    if not isinstance(batch, LookedUp):
        return batch
    given = batch.fed()
    if not open:
        return given
    rows = [tf.TensorSpec([None, array.shape[1]], tf.float32) for array in given.rows]
    places = [tf.TensorSpec([None], tf.int32) for _ in given.places]
    return given._replace(rows=tuple(rows), places=tuple(places))


def count_samples(batch: Any) -> int:
    """Length of axis 0 of the first array in `batch` that has one; 1 for a batch of bare numbers."""
    for leaf in tf.nest.flatten(batch.batch if isinstance(batch, LookedUp) else batch):
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        if len(shape):
            return int(shape[0])
    return 1
