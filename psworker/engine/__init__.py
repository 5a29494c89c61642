"""The worker's half of the session protocol, without I/O: what it may send, and what it must send again.

Rules of this package: standard library, `psworker.errors`, `pswire.protocol` and `psserver.records` only; no clock, no
thread, no protobuf. A real worker's session stream (`psworker.control`) and the simulated worker (`pslab.simulator`)
drive it.
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
    StreamRequest,
    Times,
    UnitPart,
)
from psworker.engine.client import ClientEngine

__all__ = [
    "Abandon",
    "Cancel",
    "ClientEngine",
    "Commit",
    "Disposition",
    "Done",
    "Event",
    "Grant",
    "Leave",
    "Ready",
    "Refusal",
    "Report",
    "Request",
    "Stop",
    "StreamRequest",
    "Times",
    "UnitPart",
]
