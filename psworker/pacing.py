"""Injected delays: a worker that is slow on purpose, by the same numbers as its simulated twin."""

import time
from collections.abc import Callable

from pswire.config.distributions import parse, stream
from pswire.config.experiment import Experiment


def pause_of(experiment: Experiment, worker_index: int, seed: int) -> Callable[[], None]:
    """Sleeps for as long as ``[workers.N] delay`` says, drawn anew at each call.

    Raises DelayError for a trace file that cannot be used.
    """
    section = experiment.workers.get(worker_index)
    delay = parse(section.delay) if section is not None else None
    if delay is None or delay.never:
        return lambda: None
    draw = delay.draws(stream(seed, worker_index, "delay"))
    return lambda: time.sleep(draw())
