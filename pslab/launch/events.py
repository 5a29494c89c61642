"""The events of a run. Threads and signal handlers of a run do nothing but put them into its one queue."""

from dataclasses import dataclass
from queue import SimpleQueue
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
