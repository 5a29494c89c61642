"""A worker of ours, steered by the benchmark. Commands: prepare {hosts, worker, divisor, ahead}, measure {steps}.

`ahead`: the keys of the next batch travel with each step.
"""

import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

import psworker
from benchmarks.programs.json_commands import serve
from benchmarks.tables import load
from benchmarks.tables.model import loss_of
from pswire.model.tables import Keys, unique


class Lookup:
    """A batch's unique keys of each table, and the place of each sample's row among them."""

    def __init__(self, batch: load.Batch, names: list[str]) -> None:
        self.batch = batch
        found = [unique(batch.ids[:, column]) for column in range(len(names))]
        self.keys: dict[str, Keys] = {name: keys for name, (keys, _) in zip(names, found, strict=True)}
        sizes = [keys.size for keys, _ in found]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        self.starts = starts
        self.inverse = np.stack(
            [inverse + start for (_, inverse), start in zip(found, starts[:-1], strict=True)], axis=1
        ).astype(np.int32)


class Worker:
    """One session, and the traced step."""

    def prepare(
        self, hosts: str, worker: int, divisor: int, ahead: bool, connect: dict[str, Any] | None = None
    ) -> None:
        self._tables = load.tables(divisor)
        self._names = [table.name for table in self._tables]
        self._batches, self._ahead, self._next = load.batches(worker, divisor), ahead, 0
        initial = load.weights()
        self._shapes = [values.shape for values in initial.values()]
        self._session = psworker.connect(
            hosts, initial, state=[], task_index=worker, tables=self._tables, **(connect or {})
        )
        self.losses: list[float] = []

    @tf.function(reduce_retracing=True)
    def _step(self, dense: list[Any], rows: Any, inverse: Any, numbers: Any, labels: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*dense, rows])
            embedded = tf.reshape(tf.gather(rows, inverse), [load.BATCH, -1])
            loss = loss_of(dense, embedded, numbers, labels)
        *gradients, slices = tape.gradient(loss, [*dense, rows])
        return loss, gradients, tf.math.unsorted_segment_sum(slices.values, slices.indices, tf.shape(rows)[0])

    def measure(self, steps: int) -> dict[str, Any]:
        """`steps` steps from a grant to its commit."""
        session = self._session
        looked = self._looked_up()
        session.want_rows(looked.keys)
        begin = time.monotonic()
        for number in range(steps):
            grant = session.ready()
            assert grant is not None
            weights = session.plan.gather(session.pull_flat(grant))
            pulled = session.pull_rows(grant, looked.keys)
            rows = np.concatenate([pulled[name] for name in self._names])
            batch = looked.batch
            loss, gradients, row_gradients = self._step(
                *([tf.constant(each) for each in weights], tf.constant(rows)),
                *(tf.constant(looked.inverse), tf.constant(batch.numbers), tf.constant(batch.labels)),
            )
            # The next batch is looked up while this one computes.
            following = self._looked_up() if number + 1 < steps else None
            flats = session.plan.scatter([each.numpy() for each in gradients])
            whole = row_gradients.numpy()
            named = {
                name: (looked.keys[name], whole[start:stop])
                for name, start, stop in zip(self._names, looked.starts, looked.starts[1:], strict=False)
            }
            more = self._ahead and following is not None
            session.contribute(
                *(grant, flats),
                samples=load.BATCH,
                loss=float(loss),
                ready=following is not None,
                rows=named,
                ahead=following.keys if more and following is not None else {},
            )
            self.losses.append(float(loss))
            if following is not None:
                looked = following
                if not self._ahead:
                    session.want_rows({})
        return {"begin": begin, "end": time.monotonic(), "steps": steps, "losses": self.losses[:5]}

    def _looked_up(self) -> Lookup:
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        return Lookup(batch, self._names)


if __name__ == "__main__":
    worker = Worker()
    serve({"prepare": worker.prepare, "measure": worker.measure})
    os._exit(0)
