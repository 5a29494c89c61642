"""Workers: compute gradients and push them. The library's entry is `connect`."""

from typing import TYPE_CHECKING, Any

from psworker.errors import (
    JobOver,
    JobStopped,
    Refused,
    SessionError,
    Unreachable,
    Untrusted,
)

if TYPE_CHECKING:
    from psworker.connecting import connect
    from psworker.control.joining import JobInfo
    from psworker.engine import Stop
    from psworker.job import Job, JobError
    from psworker.loop import Outcome
    from psworker.session import LoopTurn, Session, train
    from psworker.work import Unit, WorkUnits

__all__ = [
    "Job",
    "JobError",
    "JobInfo",
    "JobOver",
    "JobStopped",
    "LoopTurn",
    "Outcome",
    "Refused",
    "Session",
    "SessionError",
    "Stop",
    "Unit",
    "Unreachable",
    "Untrusted",
    "WorkUnits",
    "connect",
    "train",
]

# Loaded late, because some load gRPC. A program that uses only psworker.engine or psworker.local does not load it.
_LATE = {
    "Stop": "engine",
    "Job": "job",
    "JobError": "job",
    "Session": "session",
    "connect": "connecting",
    "Unit": "work",
    "WorkUnits": "work",
    "Outcome": "loop",
    "JobInfo": "control.joining",
    "LoopTurn": "session",
    "train": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
