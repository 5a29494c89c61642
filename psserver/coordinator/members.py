"""Who belongs to the job, in which state, and what came of their work."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

State = Literal["joined", "waiting", "computing", "done"]


@dataclass(slots=True)
class Tally:
    """What became of the contributions of one worker name, over all its incarnations."""

    committed: int = 0
    applied: int = 0
    dropped: int = 0
    samples: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    # First batch of its data that was never committed.
    next_batch: int = 0
    incarnations: int = 0

    @property
    def pending(self) -> int:
        return self.committed - self.applied - self.dropped


@dataclass(slots=True)
class Member:
    """A present worker. One per name; a newer incarnation replaces the older."""

    worker: str
    incarnation: int
    rank: int
    # Random value of the process; tells a reconnection from a restart.
    session: str
    state: State
    since: float
    # When the connection broke (or was awaited first); None while it stands.
    absent_since: float | None
    ever_connected: bool = False
    # The policy has heard its Join.
    playing: bool = False
    # The ticket id it asked for with its last Ready, while not granted.
    requested: int | None = None

    def enter(self, state: State, now: float) -> None:
        if self.state != state:
            self.state, self.since = state, now


class Roster:
    """Present members by name, and the tallies of everyone who ever was here."""

    def __init__(self) -> None:
        self.present: dict[str, Member] = {}
        self.tallies: dict[str, Tally] = {}
        # Left without being done: they may come back and finish.
        self.unfinished: dict[str, float] = {}

    def by_rank(self) -> list[Member]:
        return sorted(self.present.values(), key=lambda m: m.rank)

    def free_rank(self) -> int:
        taken = {m.rank for m in self.present.values()}
        return next(rank for rank in range(len(taken) + 1) if rank not in taken)

    def holder(self, rank: int) -> Member | None:
        return next((m for m in self.present.values() if m.rank == rank), None)

    def tally(self, worker: str) -> Tally:
        return self.tallies.setdefault(worker, Tally())
