"""ps-worker: computes gradients and pushes them. `connect` is the library's entry."""

from typing import TYPE_CHECKING, Any

from psworker.errors import PayloadRefused, Refused, SessionError, Unreachable, Voided

if TYPE_CHECKING:
    from psworker.control.messages import Disposition, Grant, StopNotice
    from psworker.job import Job, JobError
    from psworker.session import Session, connect

__all__ = [
    "Disposition",
    "Grant",
    "Job",
    "JobError",
    "PayloadRefused",
    "Refused",
    "Session",
    "SessionError",
    "StopNotice",
    "Unreachable",
    "Voided",
    "connect",
]

# These load gRPC. The simulated cluster uses psworker.local alone and does without it.
_LATE = {
    "Disposition": "control.messages",
    "Grant": "control.messages",
    "StopNotice": "control.messages",
    "Job": "job",
    "JobError": "job",
    "Session": "session",
    "connect": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
