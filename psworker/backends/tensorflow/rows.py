"""Rows of sparse tables in TensorFlow's graphs: which ids a batch looks up, and the step over their rows.

Ids are found by a trace of the step itself, of which only the way from the batch to the lookups is kept. So any model
works, whose ids follow from its inputs. In the step, rows are a variable among the model's trained ones, and their
gradient is what the loss gives it, summed over the lookups of a row in the order of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pswire.model.tables import TableSpec
from psworker.backends import ModelError
from psworker.backends.lookups import (
    Fed,
    LayerLookups,
    LookedUp,
    TableGroup,
    answer,
    answered_by,
    looked_up,
    remote_of,
    tables_of,
)
from psworker.backends.tensorflow.specs import fits, opened, spec_of, tensor

Objective = Callable[[Any], tuple[Any, Any, list[Any]]]
# Stands for rows while ids are found.
_STAND_IN = "remote_rows"


def look_up(remote: LayerLookups, ids: Any) -> Any:
    """Return rows for ids (whole numbers of any shape, ragged ones, too): [*, dim] in float32, zeros for `mask_id`.
    Raises ModelError outside of a job for a table without a reader."""
    if isinstance(ids, tf.SparseTensor):
        raise ModelError(
            f"table {remote.table.name!r}: expected ids as a dense or ragged tensor, got a SparseTensor: "
            "tf.RaggedTensor.from_sparse makes a ragged one"
        )
    ragged = isinstance(ids, tf.RaggedTensor)
    flat = ids.flat_values if ragged else tf.convert_to_tensor(ids)
    if not flat.dtype.is_integer:
        flat = tf.cast(flat, tf.int64)
    answering = answer()
    rows = _read(remote, flat) if answering is None else answering(remote, flat)
    if remote.mask_id is not None:
        rows = tf.where((flat != remote.mask_id)[..., None], rows, tf.zeros_like(rows))
    return ids.with_flat_values(rows) if ragged else rows


def _read(remote: LayerLookups, ids: Any) -> Any:
    """Ask the layer's reader, from within the graph."""
    if _in_symbolic_scope():
        return tf.zeros([*(size or 1 for size in ids.shape), remote.table.dim])
    remote.readable()
    rows = tf.numpy_function(remote.read, [ids], tf.float32, stateful=True)
    rows.set_shape([*ids.shape, remote.table.dim])
    return rows


def _in_symbolic_scope() -> bool:
    """Keras only asks for shapes."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return bool(in_symbolic_scope())


class LayerTables:
    """The tables of some layers in a step: `specs`; `scratch`: a variable for the rows of each trained group.

    `together`: tables of one width are one variable, which spares the graph most of its operations. Otherwise each has
    its own, for code that looks at gradients one by one.
    """

    def __init__(self, layers: Sequence[Any], *, together: bool = True) -> None:
        self._layers = [layer for layer in layers if remote_of(layer) is not None]
        self.specs = tables_of(self._layers)
        self._groups = self._grouped(together)
        self._rows = [
            tf.Variable(tf.zeros([1, group.dim]), shape=[None, group.dim], trainable=group.trained)
            for group in self._groups
        ]
        trained = [
            (rows, group) for rows, group in zip(self._rows, self._groups, strict=True) if group.trained
        ]
        self.scratch = tuple(rows for rows, _ in trained)
        # As Keras knows them, each with the layer that has it.
        layer_of = {layer.remote.table.name: layer for layer in self._layers}
        self._known = [
            (layer_of[group.tables[0].name], _keras_variable(group.tables[0].name, rows))
            for rows, group in trained
        ]

    def _grouped(self, together: bool) -> tuple[TableGroup, ...]:
        """Group the tables. Raises ModelError for one of which some layers are trained and some are not."""
        trained: dict[str, bool] = {}
        for layer in self._layers:
            name = layer.remote.table.name
            if trained.setdefault(name, layer.trainable) != layer.trainable:
                raise ModelError(
                    f"of the layers that share the table {name!r} some are trained and some are not: expected the same "
                    "`trainable` for all"
                )
        found: dict[Any, list[TableSpec]] = {}
        for table in self.specs:
            key = (table.dim, trained[table.name]) if together else table.name
            found.setdefault(key, []).append(table)
        return tuple(
            TableGroup(tuple(tables), tables[0].dim, trained[tables[0].name]) for tables in found.values()
        )

    def over_rows(self, objective: Objective) -> Objective:
        """Return an objective of `Fed` batches, made of one whose gradients cover `scratch`, too, as its last."""
        number = {table.name: at for at, group in enumerate(self._groups) for table in group.tables}

        def fed(given: Fed) -> tuple[Any, Any, list[Any]]:
            for variable, rows in zip(self._rows, given.rows, strict=True):
                variable.assign(rows)
            waiting = list(map(_divided, given.places, given.sizes))

            def gather(remote: LayerLookups, ids: Any) -> Any:
                at = number[remote.table.name]
                rows = tf.gather(self._rows[at], next(waiting[at]))
                if ids.shape.rank != 1:
                    rows = tf.reshape(rows, tf.concat([tf.shape(ids), [remote.table.dim]], 0))
                rows.set_shape([*ids.shape, remote.table.dim])
                return rows

            with self._in_the_model(), answered_by(gather):
                return objective(given.batch)

        return fed

    @contextmanager
    def _in_the_model(self) -> Iterator[None]:
        """Rows are among the trained variables of their layers, and so of the model."""
        for layer, variable in self._known:
            layer._trainable_variables.append(variable)
        try:
            yield
        finally:
            for layer, _ in self._known:
                layer._trainable_variables.pop()

    def finder(self, objective: Objective) -> LookupFinder:
        """Return what finds the ids of batches for this objective."""

        def traced(batch: Any) -> None:
            with self._in_the_model():
                objective(batch)

        return LookupFinder(self._groups, traced)


def _divided(places: Any, sizes: Any) -> Iterator[Any]:
    """Yield the places of each lookup in turn."""
    count = sizes.shape[1]
    return iter([places] if count == 1 else tf.split(places, sizes[0], num=count))


def _keras_variable(name: str, rows: Any) -> Any:
    made = keras.Variable(tf.zeros([1, rows.shape[1]]), name=f"{name}_rows")
    made._value, made._shape = rows, (None, rows.shape[1])
    return made


class LookupFinder:
    """Finds what batches look up. `step`: computes a batch; it is traced here, and never run."""

    def __init__(self, groups: tuple[TableGroup, ...], step: Callable[[Any], object]) -> None:
        self._groups, self._step = groups, step
        # (specification of batches, what is looked up, function from the batch to ids and sizes of all lookups)
        self._found: list[tuple[Any, list[LayerLookups], Any]] = []

    def __call__(self, batch: Any) -> Callable[[], LookedUp]:
        """Return a function that returns the batch with its keys, for any thread. Traces here, where it must.

        Raises ModelError for ids that do not follow from the batch alone.
        """
        tensors = tf.nest.map_structure(tensor, batch)
        known = (each for each in reversed(self._found) if fits(each[0], tensors))
        _, remotes, function = next(known, None) or self._trace(tensors)
        flat = tf.nest.flatten(tensors, expand_composites=True)

        def find() -> LookedUp:
            ids, sizes = (each.numpy() for each in function(*flat))
            several = np.split(ids, np.cumsum(sizes)[:-1])
            return looked_up(batch, self._groups, list(zip(remotes, several, strict=True)))

        return find

    def _trace(self, batch: Any) -> tuple[Any, list[LayerLookups], Any]:
        spec = opened(tf.nest.map_structure(spec_of, batch), [each for each, *_ in self._found])
        lookups: list[tuple[LayerLookups, Any]] = []

        def record(remote: LayerLookups, ids: Any) -> Any:
            if ids.graph is not tf.compat.v1.get_default_graph() or ids.graph is not graph[0]:
                raise ModelError(
                    f"table {remote.table.name!r} is looked up within a loop, a branch or another tf.function, where "
                    "ids cannot be found before the step: look it up outside of it"
                )
            lookups.append((remote, tf.reshape(tf.cast(ids, tf.int64), [-1])))
            zeros = tf.zeros(tf.concat([tf.shape(ids), [remote.table.dim]], 0))
            rows = tf.compat.v1.placeholder_with_default(
                zeros, [*ids.shape, remote.table.dim], name=_STAND_IN
            )
            return rows

        graph: list[Any] = []
        found: list[Any] = []

        def body(*flat: Any) -> None:
            graph.append(tf.compat.v1.get_default_graph())
            with answered_by(record):
                self._step(tf.nest.pack_sequence_as(spec, flat, expand_composites=True))
            ids = [each for _, each in lookups]
            found.extend((tf.concat(ids, 0), tf.stack([tf.size(each) for each in ids])))

        flat = tf.nest.flatten(spec, expand_composites=True)
        wrapped = tf.compat.v1.wrap_function(body, flat)
        function = wrapped.prune(wrapped.inputs, found)
        _check(function, lookups)
        # A pruned function is slow to call by itself: it first tries another signature.
        called = tf.function(function, input_signature=flat, autograph=False).get_concrete_function()
        self._found.append((spec, [remote for remote, _ in lookups], called))
        return self._found[-1]


def _check(function: Any, lookups: Sequence[tuple[LayerLookups, Any]]) -> None:
    """Refuse ids that depend on more than the batch."""
    names = ", ".join(sorted({remote.table.name for remote, _ in lookups}))
    for operation in function.graph.get_operations():
        if _STAND_IN in operation.name:
            what = "rows of a table"
        elif operation.op_def.is_stateful and "Random" in operation.type:
            what = "random numbers"
        else:
            continue
        raise ModelError(
            f"the ids of {names} depend on {what}, and servers are asked for rows before the step: expected ids that "
            "follow from the batch"
        )
    trained = {id(variable.handle) for variable in function.graph.variables if variable.trainable}
    if any(id(outer) in trained and inner.consumers() for outer, inner in function.graph.captures):
        raise ModelError(
            f"the ids of {names} depend on weights that are trained, and servers are asked for rows before the step: "
            "expected ids that follow from the batch"
        )
