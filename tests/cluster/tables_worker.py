"""A worker without TensorFlow whose model has sparse tables, by itself or as the script of a `ps-lab run`.

    python -m tests.cluster.tables_worker [--batches N] [--seconds S] [--gate STEP FILE]

It trains the problem `clicks` with `psworker.loop.train`, the loop of the real worker. Rows of one table come and go.
Before a step of `--gate` it waits for a file, as `numpy_worker` does. The environment says where the servers are.
"""

import argparse
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pslab.simulator.problems.clicks import Clicks
from pslab.simulator.problems.problem import Floats, NumpyResult, NumpyTrainer
from pswire.model.tables import TableSpec
from psworker import loop
from tests.cluster.numpy_worker import LOOK_EVERY, say
from tests.links import connect_link


class Evicting(Clicks):
    """Clicks, whose first table evicts rows by age, and whose second admits them by chance."""

    def tables(self) -> list[TableSpec]:
        first, second, *others = super().tables()
        return [
            replace(first, evict_age=6, evict_every=5),
            replace(second, admit=0.5, optimizer='{"learning_rate":0.05,"name":"rowwise-adagrad"}'),
            *others,
        ]


def problem(batches: int, dim: int = 4) -> Evicting:
    return Evicting(batches_per_epoch=batches, batch_size=32, dim=dim)


class Gated(NumpyTrainer):
    """A trainer whose steps of some numbers, from 0, wait for files."""

    def __init__(self, problem: Clicks, gates: Mapping[int, Path]) -> None:
        super().__init__(problem)
        self._gates, self.steps = gates, 0

    def step_rows(self, flats: list[Floats], batch: Any, rows: Mapping[str, Floats]) -> NumpyResult:
        gate = self._gates.get(self.steps)
        while gate is not None and not gate.exists():
            _pause(LOOK_EVERY)
        self.steps += 1
        return super().step_rows(flats, batch, rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.0, help="per step")
    parser.add_argument("--dim", type=int, default=4, help="of rows")
    gate = {"nargs": 2, "action": "append", "default": [], "metavar": ("STEP", "FILE")}
    parser.add_argument("--gate", **gate, help="computes step number STEP, from 0, once there is this file")
    parser.add_argument("launched", nargs="*", help="in place of psworker.script: its parent and its script")
    options = parser.parse_args()
    gates = {int(step): Path(file) for step, file in options.gate}
    model = Gated(problem(options.batches, options.dim), gates)
    with connect_link(
        os.environ["PS_HOSTS"],
        model.specs,
        task_index=int(os.environ["PS_TASK_INDEX"]),
        server_timeout=60.0,
        tables=model.tables,
        transport=os.environ.get("PS_TRANSPORT") or "auto",
    ) as session:
        model.attach(session.plan)
        outcome = loop.train(session, model, 1, lambda *_: None, lambda: _pause(options.seconds))
    assert outcome.stop is not None
    say("finished", computed=model.steps, fates=outcome.fates)
    return 0 if outcome.stop.success else 3


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    sys.exit(main())
