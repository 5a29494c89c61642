"""The events of a run, Ctrl-C and SIGTERM among them.

Threads and signal handlers of a run do nothing but put events into its one queue."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any

from pswire.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Reserved:
    """The engine has places for all processes; or a sentence that says which there are not."""

    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """A process printed one JSON object on its standard output."""

    name: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A process did not begin, for there was no place for it in time. Its `Exited` follows."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended. `code` as `Popen.returncode`: negative for a signal."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The coordinator's status, as it just answered."""

    status: pb.StatusReply


@dataclass(frozen=True, slots=True)
class StatusFailure:
    """The coordinator could not be asked for its status."""

    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process was asked to stop."""

    signal: int


Event = Reserved | Printed | Unplaced | Exited | StatusAnswer | StatusFailure | Signalled
# SimpleQueue: its put is safe inside a signal handler.
EventQueue = SimpleQueue[Event]


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
