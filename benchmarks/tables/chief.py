"""The chief of a ParameterServerStrategy cluster that trains the click model.

Keras 3 has no way for it, so: bare variables on the server, unique ids, a gather there, and Adagrad on the gathered
rows there. `merged`: one table with an offset for each feature; else one for each. Commands: connect, prepare {load,
merged, divisor, pack}, measure, release.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.programs.tensorflow.chief import Chief, Running
from benchmarks.tables import load
from benchmarks.tables.model import loss_of
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import mix


class RowsChief(Chief):
    def prepare_rows(self, load: str, merged: bool, divisor: int, pack: int = 1) -> None:
        step = _step(self._strategy, merged, divisor, pack)
        data = iter(self._coordinator.create_per_worker_dataset(lambda: _dataset(divisor, merged)))
        self._losses: list[float] = []
        self._loads[load] = Running(step, data, pack)

    def measure(self, load: str, steps: int) -> dict[str, Any]:
        running = self._loads[load]
        if not self._losses:
            for _ in range(5):
                found = self._coordinator.schedule(running.step, args=(running.data,))
                self._losses.append(float(found.fetch()))
        return {**super().measure(load, steps), "losses": self._losses}


def _rows(number: int, size: int, divisor: int) -> np.ndarray:
    return initial_rows(load.tables(divisor)[number], mix(np.arange(size)))


def _step(strategy: Any, merged: bool, divisor: int, pack: int) -> Any:
    sizes = load.sizes(divisor)
    initial = [_rows(number, size, divisor) for number, size in enumerate(sizes)]
    if merged:
        initial = [np.concatenate(initial)]
    with strategy.scope():
        held = [tf.Variable(values, name=f"t{i}") for i, values in enumerate(initial)]
        squares = [tf.Variable(tf.fill(values.shape, load.ACCUMULATOR)) for values in initial]
        dense = [tf.Variable(values) for values in load.weights().values()]
        dense_squares = [
            tf.Variable(tf.fill(values.shape, load.ACCUMULATOR)) for values in load.weights().values()
        ]
    del initial

    @tf.function
    def step(iterator: Any) -> Any:
        seen = 0.0
        for _ in range(pack):
            ids, numbers, labels = next(iterator)
            columns = [tf.reshape(ids, [-1])] if merged else tf.unstack(ids, axis=1)
            found = [tf.unique(column) for column in columns]
            gathered = []
            for variable, each in zip(held, found, strict=True):
                with tf.device(variable.device):
                    gathered.append(tf.gather(variable, each.y))
            weights = [variable.read_value() for variable in dense]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*weights, *gathered])
                looked = [tf.gather(rows, each.idx) for rows, each in zip(gathered, found, strict=True)]
                embedded = tf.reshape(looked[0], [load.BATCH, -1]) if merged else tf.concat(looked, 1)
                loss = loss_of(weights, embedded, numbers, labels)
            gradients = tape.gradient(loss, [*weights, *gathered])
            rate = tf.constant(load.RATE)
            for variable, a, g in zip(dense, dense_squares, gradients, strict=False):
                with tf.device(variable.device):
                    tf.raw_ops.ResourceApplyAdagradV2(
                        var=variable.handle, accum=a.handle, lr=rate, epsilon=1e-7, grad=g
                    )
            for variable, a, each, g in zip(held, squares, found, gradients[len(dense) :], strict=True):
                summed = tf.math.unsorted_segment_sum(g.values, g.indices, tf.shape(each.y)[0])
                with tf.device(variable.device):
                    tf.raw_ops.ResourceSparseApplyAdagradV2(
                        var=variable.handle,
                        accum=a.handle,
                        lr=rate,
                        epsilon=1e-7,
                        grad=summed,
                        indices=each.y,
                    )
            seen += loss
        return seen / pack

    return step


def _dataset(divisor: int, merged: bool) -> Any:
    offsets = np.concatenate([[0], np.cumsum(load.sizes(divisor))])[:-1] if merged else 0
    several = load.batches(0, divisor)
    data = tf.data.Dataset.from_tensor_slices(
        (
            np.stack([batch.ids + offsets for batch in several]),
            np.stack([batch.numbers for batch in several]),
            np.stack([batch.labels for batch in several]),
        )
    )
    return data.cache().repeat().prefetch(2)


if __name__ == "__main__":
    chief = RowsChief()
    chief.serve(chief.prepare_rows)
