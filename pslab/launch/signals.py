"""Ctrl-C and SIGTERM as events of a run."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pslab.launch.events import EventQueue, Signalled


@contextmanager
def signals_to(events: EventQueue) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into events as long as the block runs. In the main thread."""

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Signalled(number))

    before = {number: signal.signal(number, put) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
