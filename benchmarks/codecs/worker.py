"""A worker of `scripts/bench local-steps`: the Markov chain in numpy, a batch of which takes so many seconds at least.

python -m benchmarks.codecs.worker HOSTS INDEX WIRE_DTYPE SEED STEPS SECONDS
"""

import sys
import threading
import time
from typing import Any

import psworker
from benchmarks.codecs.markov import MarkovChain
from pslab.simulator.problems import NumpyTrainer
from psworker import loop


class Paced(NumpyTrainer):
    """Waits after each gradient until its seconds are over, as if an accelerator computed. It does not evaluate."""

    def __init__(self, problem: MarkovChain, seconds: float) -> None:
        super().__init__(problem)
        self._seconds, self._pause = seconds, threading.Event()

    def step(self, flats: Any, batch: Any) -> Any:
        begin = time.monotonic()
        result = super().step(flats, batch)
        self._pause.wait(max(0.0, begin + self._seconds - time.monotonic()))
        return result

    def evaluate(self, flats: Any) -> dict[str, float]:
        return {}


def main(hosts: str, index: str, wire_dtype: str, seed: str, steps: str, seconds: str) -> None:
    trainer = Paced(MarkovChain(int(seed), int(steps)), float(seconds))
    with psworker.connect(
        hosts,
        trainer.specs,
        task_index=int(index),
        wire_dtype=wire_dtype,
        local_rules=True,
        transport="socket",
    ) as session:
        trainer.attach(session.plan)
        loop.train(session, trainer, 1, lambda *_: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
