"""The client's half of the session protocol, without I/O: what a worker may send, what it must send again.

Rules of this package: standard library, `psworker.errors`, `pswire.protocol` and `pswire.records` only; no clock, no
thread, no protobuf. Three programs drive it: the session stream of a real worker (`psworker.control`), the simulated
worker (`pslab.simulator`) and the schedules of `ps-lab verify-policy` (`pslab.verify`).

    legal       what the training loop may do when
    client      the state machine
    pending     what was sent and is not answered, and how far the loop is in its batches
    state       its state as a value; from the machine to that value and back
"""

from pswire.protocol import (
    Abandon,
    Cancel,
    Commit,
    Disposition,
    Done,
    Event,
    Grant,
    Leave,
    Ready,
    Refusal,
    Report,
    Request,
    Stop,
    Times,
    UnitPart,
)
from psworker.engine.client import ClientEngine
from psworker.engine.legal import LEGAL, WorkState
from psworker.engine.state import EngineState

__all__ = [
    "LEGAL",
    "Abandon",
    "Cancel",
    "ClientEngine",
    "Commit",
    "Disposition",
    "Done",
    "EngineState",
    "Event",
    "Grant",
    "Leave",
    "Ready",
    "Refusal",
    "Report",
    "Request",
    "Stop",
    "Times",
    "UnitPart",
    "WorkState",
]
