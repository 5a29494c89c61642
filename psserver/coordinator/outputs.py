"""What the coordinator asks its shell to do: append to the log, tell a worker."""

from dataclasses import dataclass

from psserver.coordinator.entries import Entry


class JoinRefused(ValueError):
    """A worker cannot become a member; the text says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """Append `entry` to the decision log as number `index`, and have every shard execute it."""

    index: int
    t: float
    entry: Entry


@dataclass(frozen=True, slots=True)
class GrantNotice:
    ticket: int
    version: int
    # Number of the grant in the decision log.
    index: int
    initialise: bool = False


@dataclass(frozen=True, slots=True)
class CancelNotice:
    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class DispositionNotice:
    """`fate` is "applied", "dropped" or "pending"; `version` is the one it became part of."""

    ticket: int
    fate: str
    version: int = 0
    staleness: int = 0
    weight: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopNotice:
    reason: str
    version: int
    success: bool
    # Number of the stop in the decision log; 0 when the job itself goes on.
    index: int
    evaluate: bool = False


@dataclass(frozen=True, slots=True)
class RefusalNotice:
    message: str
    fatal: bool = False
    ticket: int = 0


Notice = GrantNotice | CancelNotice | DispositionNotice | StopNotice | RefusalNotice


@dataclass(frozen=True, slots=True)
class Tell:
    worker: str
    incarnation: int
    notice: Notice


Output = Record | Tell
