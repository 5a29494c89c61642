"""examples/linear.py whose workers wait at gates: so that a run does not end before somebody has done something."""

import threading
from pathlib import Path

from examples.linear import Linear

# For a gate, in seconds.
LOOK_EVERY = 0.01


class GatedLine(Linear):
    """`marks`: a folder. A worker that comes to batch n leaves the file `batch-n` there, and waits before each batch
    k * `every` for the file `gate-k`. Of each worker's data (`gates` + 1) * `every` batches are used."""

    batch_size: int = 16
    marks: str = ""
    gates: int = 5
    every: int = 8

    def dataset(self, worker_index, worker_count, seed):
        batches = super().dataset(worker_index, worker_count, seed)[: (self.gates + 1) * self.every]
        marks = Path(self.marks)

        def gated(epoch):
            for number, batch in enumerate(batches):
                (marks / f"batch-{number}").touch()
                gate = marks / f"gate-{number // self.every}"
                while number % self.every == 0 and number and not gate.exists():
                    threading.Event().wait(LOOK_EVERY)
                yield batch

        return gated
