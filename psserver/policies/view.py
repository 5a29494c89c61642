"""What the five choices look at: who is here, what is open, what is committed."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Member:
    worker: str
    rank: int
    # Commits of this worker, or the slowest clock at its join: a newcomer
    # must not look slower than everybody else.
    clock: int
    done: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """A granted ticket that is neither committed nor given up."""

    ticket: int
    worker: str
    base: int


@dataclass(slots=True)
class Contribution:
    """A committed ticket that waits for its update."""

    ticket: int
    worker: str
    rank: int
    factor: float
    compensation: float
    folded: bool = False


@dataclass(slots=True)
class View:
    """Facts only. Every dict keeps the order of its events, so iteration is deterministic."""

    version: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    open: dict[int, Open] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    # Folded contributions come first, in the order of their folds.
    buffer: list[Contribution] = field(default_factory=list)
    # The most workers that were ever active at once.
    peak: int = 0

    def active(self) -> list[Member]:
        """Members that still have data, by rank."""
        return sorted((m for m in self.members.values() if not m.done), key=lambda m: m.rank)

    def contributors(self) -> set[str]:
        return {c.worker for c in self.buffer}

    def slowest_clock(self) -> int:
        """Of the active members; 0 when there are none."""
        return min((m.clock for m in self.members.values() if not m.done), default=0)

    def draining(self) -> bool:
        """Nothing more will ever be committed."""
        return not self.open and not any(not m.done for m in self.members.values())
