"""What the one loop of a local run hears. Threads and signal handlers only put messages here."""

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from pswire.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Said:
    """A process printed one JSON object on its standard output."""

    name: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended. `code` as `Popen.returncode`: negative for a signal."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The coordinator's status, asked for a moment ago."""

    status: pb.StatusReply


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The coordinator could not be asked for its status."""

    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process was asked to stop."""

    signal: int


Message = Said | Exited | Answered | Unanswered | Signalled
# SimpleQueue: its put is safe inside a signal handler.
Mailbox = SimpleQueue[Message]
