"""A worker of ours, steered by the benchmark. Commands: prepare {hosts, worker, divisor}, measure {steps}."""

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

import psworker
from benchmarks.programs.json_commands import serve
from benchmarks.tables import load
from benchmarks.tables.model import loss_of
from pswire.model.adjacent import joined
from pswire.model.tables import Keys, sums, uniques
from psworker.backends.tensorflow.flats import array_of, tensor_of


class Lookup:
    """A batch's unique keys of each table, and the place of each sample's row among them."""

    def __init__(self, batch: load.Batch, names: list[str]) -> None:
        self.batch = batch
        found = uniques(list(batch.ids.T))
        self.keys: dict[str, Keys] = {name: keys for name, (keys, _) in zip(names, found, strict=True)}
        sizes = [keys.size for keys, _ in found]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        self.inverse = np.empty(batch.ids.shape, np.int32)
        for column, (_, inverse) in enumerate(found):
            np.add(inverse, self.starts[column], out=self.inverse[:, column])
        self.given = tuple(map(tf.constant, (self.inverse, batch.numbers, batch.labels)))


class Worker:
    """One session, and the traced step."""

    def prepare(self, hosts: str, worker: int, divisor: int) -> None:
        self._tables = load.tables(divisor)
        self._names = [table.name for table in self._tables]
        self._batches, self._next = load.batches(worker, divisor), 0
        # Batches are looked up beside the steps, as in jobs.
        self._beside, self._waiting = ThreadPoolExecutor(1), deque[Future[Lookup]]()
        initial = load.weights()
        self._shapes = [values.shape for values in initial.values()]
        self._session = psworker.connect(
            hosts, initial, state=[], task_index=worker, tables=self._tables
        )._link
        self.losses: list[float] = []
        self._call: Any = None

    def _traced(self, looked: Lookup) -> Any:
        """Return the step for any number of rows; a function that is traced once costs least to call."""
        rows = tf.TensorSpec([None, load.DIM])
        dense = [tf.TensorSpec(shape) for shape in self._shapes]
        return tf.function(self._step).get_concrete_function(dense, rows, *looked.given)

    def _step(self, dense: list[Any], rows: Any, inverse: Any, numbers: Any, labels: Any) -> Any:
        embedded = tf.reshape(tf.gather(rows, inverse), [load.BATCH, -1])
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*dense, embedded])
            loss = loss_of(dense, embedded, numbers, labels)
        *gradients, of_embedded = tape.gradient(loss, [*dense, embedded])
        return loss, gradients, of_embedded

    def measure(self, steps: int) -> dict[str, Any]:
        """`steps` steps from a grant to its commit."""
        session = self._session
        looked = self._looked_up()
        if self._call is None:
            self._call = self._traced(looked)
        session.want_rows(looked.keys)
        begin = time.monotonic()
        for number in range(steps):
            grant = session.ready()
            assert grant is not None
            weights = session.plan.gather(session.pull_flat(grant))
            pulled = session.pull_rows(grant, looked.keys)
            rows = joined([pulled[name] for name in self._names]).reshape(-1, load.DIM)
            # As in jobs, the next batch is looked up while this one computes.
            following = self._looked_up() if number + 1 < steps else None
            loss, gradients, of_embedded = self._call(
                *(tf.constant(each) for each in weights), tensor_of(rows), *looked.given
            )
            flats = session.plan.scatter([array_of(each) for each in gradients])
            # The bits of TensorFlow's own sum, in a fraction of its time.
            whole = sums(looked.inverse.reshape(-1), array_of(of_embedded).reshape(-1, load.DIM), len(rows))
            named = {
                name: (looked.keys[name], whole[start:stop])
                for name, start, stop in zip(self._names, looked.starts, looked.starts[1:], strict=False)
            }
            session.contribute(
                *(grant, flats),
                samples=load.BATCH,
                loss=float(loss),
                ready=following is not None,
                rows=named,
                ahead={} if following is None else following.keys,
            )
            self.losses.append(float(loss))
            if following is not None:
                looked = following
        end = time.monotonic()
        return {"begin": begin, "end": end, "steps": steps, "losses": self.losses[:5]}

    def _looked_up(self) -> Lookup:
        """Return the next batch; the two behind it are looked up meanwhile."""
        while len(self._waiting) < 3:
            batch = self._batches[self._next % len(self._batches)]
            self._waiting.append(self._beside.submit(Lookup, batch, self._names))
            self._next += 1
        return self._waiting.popleft().result()


if __name__ == "__main__":
    worker = Worker()
    serve({"prepare": worker.prepare, "measure": worker.measure})
    os._exit(0)
