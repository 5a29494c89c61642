"""The events of a run, Ctrl-C and SIGTERM among them.

Threads and signal handlers of a run only put events into its single queue.
"""

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
    """The engine has places for all processes, or `problem` says what is missing."""

    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """A process printed one JSON object on its standard output."""

    name: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended. `code` as in `Popen.returncode`: negative for a signal.

    `lost`: its node, or the connection to it, was lost, or it found no place there; `unplaced` says why it found none.
    """

    name: str
    code: int
    lost: bool = False
    unplaced: str = ""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The coordinator answered with its status."""

    status: pb.StatusReply


@dataclass(frozen=True, slots=True)
class StatusFailure:
    """The coordinator did not answer a request for its status."""

    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process was asked to stop."""

    signal: int


Event = Reserved | Printed | Exited | StatusAnswer | StatusFailure | Signalled
# SimpleQueue, because its `put` is safe inside a signal handler.
EventQueue = SimpleQueue[Event]


# Bytes; more than any system's struct sigaction.
_SIGACTION = 1024


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the block, whatever a library installs in it.

    Works in any thread, unlike Python's own functions.
    """
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
    """Turn SIGINT and SIGTERM into events while the block runs. Requires the main thread."""

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Signalled(number))

    before = {number: signal.signal(number, put) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
