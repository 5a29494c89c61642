"""ps-worker: computes gradients and pushes them. `connect` is the library's entry."""

from psworker.errors import PayloadRefused, Refused, SessionError, Unreachable, Voided
from psworker.grants import Disposition, Grant, StopNotice
from psworker.session import Session, connect

__all__ = [
    "Disposition",
    "Grant",
    "PayloadRefused",
    "Refused",
    "Session",
    "SessionError",
    "StopNotice",
    "Unreachable",
    "Voided",
    "connect",
]
