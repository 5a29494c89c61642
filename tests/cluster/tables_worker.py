"""A worker without TensorFlow whose model has sparse tables, as the script of a `ps-lab run`.

    python -m tests.cluster.tables_worker [--batches N] [--seconds S]

It trains the problem `clicks` with `psworker.loop.train`, the loop of the real worker. Rows of one table come and go.
"""

import argparse
import os
import sys
import threading
from dataclasses import replace

import psworker
from pslab.simulator.problems.clicks import Clicks
from pslab.simulator.problems.problem import NumpyTrainer
from pswire.model.tables import TableSpec
from psworker import loop


class Evicting(Clicks):
    """Clicks, whose first table admits rows by count and evicts them by age."""

    def tables(self) -> list[TableSpec]:
        first, *others = super().tables()
        return [replace(first, admit_after=2, evict_age=20, evict_every=5), *others]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.0, help="per step")
    parser.add_argument("launched", nargs="*", help="in place of psworker.script: its parent and its script")
    options = parser.parse_args()
    model = NumpyTrainer(Evicting(batches_per_epoch=options.batches, batch_size=32))
    with psworker.connect(
        os.environ["PS_HOSTS"],
        model.specs,
        task_index=int(os.environ["PS_TASK_INDEX"]),
        server_timeout=60.0,
        tables=model.tables,
    ) as session:
        model.attach(session.plan)
        outcome = loop.train(session, model, 1, lambda *_: None, lambda: _pause(options.seconds))
    assert outcome.stop is not None
    return 0 if outcome.stop.success else 3


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


if __name__ == "__main__":
    sys.exit(main())
