"""Ctrl-C and SIGTERM as events of a run."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pslab.launch.events import EventQueue, Signalled

# More than any system's struct sigaction.
_SIGACTION = 1024


@contextmanager
def signals_kept() -> Iterator[None]:
    """What SIGINT and SIGTERM do is the same after the block as before it, whatever a library has installed in it. In
    any thread, which Python's own functions do not allow."""
    libc = ctypes.CDLL(None)
    before = {number: ctypes.create_string_buffer(_SIGACTION) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in before.items():
        libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            libc.sigaction(number, action, None)


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
