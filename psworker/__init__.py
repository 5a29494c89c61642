"""Workers: compute gradients and push them. The library's entry is `connect`."""

from typing import TYPE_CHECKING, Any

from psworker.errors import (
    IllegalInput,
    JobOver,
    JobStopped,
    PayloadRefused,
    Refused,
    RolledBack,
    SessionError,
    Unreachable,
    Untrusted,
    Voided,
)

if TYPE_CHECKING:
    from psworker.connecting import connect
    from psworker.engine import Disposition, Grant, Stop
    from psworker.job import Job, JobError
    from psworker.loop import Outcome, train
    from psworker.session import Session
    from psworker.work import Unit, WorkUnits

__all__ = [
    "Disposition",
    "Grant",
    "IllegalInput",
    "Job",
    "JobError",
    "JobOver",
    "JobStopped",
    "Outcome",
    "PayloadRefused",
    "Refused",
    "RolledBack",
    "Session",
    "SessionError",
    "Stop",
    "Unit",
    "Unreachable",
    "Untrusted",
    "Voided",
    "WorkUnits",
    "connect",
    "train",
]

# Loaded late, because some load gRPC. A program that uses only psworker.engine or psworker.local does not load it.
_LATE = {
    "Disposition": "engine",
    "Grant": "engine",
    "Stop": "engine",
    "Job": "job",
    "JobError": "job",
    "Session": "session",
    "connect": "connecting",
    "Unit": "work",
    "WorkUnits": "work",
    "Outcome": "loop",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
