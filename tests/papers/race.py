"""Workers that race on a virtual clock: the claims of papers about time, staleness and work lost.

A worker that is granted a ticket computes for a time by chance, commits, and asks again at once;
messages take no time, and cancelled work stops at once. One policy decides, nothing else is there.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from psserver.policies import Apply, Cancel, Commit, Decision, Drop, Event, Grant, Join, Ready, build

# Seconds that worker `rank` computes this time.
Draw = Callable[[random.Random, int], float]


def turns(dice: random.Random, rank: int) -> float:
    """All take 1 s: they take turns."""
    return 1.0


def exponential(dice: random.Random, rank: int) -> float:
    """Mean 1."""
    return dice.expovariate(1.0)


def shifted(dice: random.Random, rank: int) -> float:
    """1 + exp(1): mean 2."""
    return 1.0 + dice.expovariate(1.0)


def pareto(dice: random.Random, rank: int) -> float:
    """Pareto(2, 1): mean 2, infinite variance."""
    return dice.paretovariate(2.0)


def jittered(dice: random.Random, rank: int) -> float:
    """Equally fast, but for 20 percent."""
    return dice.uniform(0.8, 1.2)


def slow_last(factor: float, draw: Draw) -> Draw:
    """Worker 0 takes `factor` times as long, always."""
    return lambda dice, rank: draw(dice, rank) * (factor if rank == 0 else 1.0)


@dataclass
class Race:
    """`staleness` and `dropped` count contributions by their staleness; `lost` adds up the ages of lost work."""

    name: str
    knobs: dict[str, object]
    workers: int = 8
    draw: Draw = exponential
    seed: int = 7
    now: float = 0.0
    version: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    cancelled: Counter[int] = field(default_factory=Counter)
    # Of updates, by their number of parts.
    sizes: Counter[int] = field(default_factory=Counter)
    clocks: list[int] = field(default_factory=list)
    # The most clocks that a worker which started was ahead of the slowest.
    gap: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._policy = build(self.name, self.knobs, self.workers)
        self._ends: list[tuple[float, int, int]] = []
        # ticket -> (rank, base)
        self._held: dict[int, tuple[int, int]] = {}
        self._pending: dict[int, int] = {}
        self._tickets = 0
        self.clocks = [0] * self.workers
        for rank in range(self.workers):
            self._tell(Join(f"w{rank}", rank))
        for rank in range(self.workers):
            self._ask(rank)

    def until(self, versions: int) -> "Race":
        while self.version < versions:
            self.now, ticket, rank = heapq.heappop(self._ends)
            if ticket not in self._held:
                continue
            self._pending[ticket] = self._held.pop(ticket)[1]
            self.clocks[rank] += 1
            idle = self._tell(Commit(f"w{rank}", ticket, 1, 0.0, 0.0, self.now))
            for other in (rank, *idle):
                self._ask(other)
        return self

    def _ask(self, rank: int) -> None:
        self._tickets += 1
        self._tell(Ready(f"w{rank}", self._tickets))

    def _tell(self, event: Event) -> list[int]:
        """Ranks of the workers whose work was cancelled."""
        return [rank for d in self._policy.step(event) if (rank := self._follow(d)) is not None]

    def _follow(self, decision: Decision) -> int | None:
        match decision:
            case Grant(worker, ticket):
                rank = int(worker[1:])
                self._held[ticket] = (rank, self.version)
                heapq.heappush(self._ends, (self.now + self.draw(self._dice, rank), ticket, rank))
                self.gap = max(self.gap, self.clocks[rank] - min(self.clocks))
            case Apply(parts):
                self.staleness.update(self.version - self._pending.pop(part.ticket) for part in parts)
                self.sizes[len(parts)] += 1
                self.version += 1
            case Drop(ticket):
                self.dropped[self.version - self._pending.pop(ticket)] += 1
            case Cancel(ticket):
                rank, base = self._held.pop(ticket)
                self.cancelled[self.version - base] += 1
                return rank
        return None

    @property
    def time_per_update(self) -> float:
        return self.now / self.version

    @property
    def mean_staleness(self) -> float:
        return total(self.staleness) / self.staleness.total()

    @property
    def in_flight(self) -> int:
        """Versions that all work in flight has aged, also what is committed and not yet applied."""
        bases = [*(base for _, base in self._held.values()), *self._pending.values()]
        return sum(self.version - base for base in bases)


@cache
def ran(name: str, updates: int, draw: Draw = exponential, workers: int = 8, **knobs: object) -> Race:
    """A race that is over. Asked for twice it is run once: look at it only."""
    return Race(name, knobs, workers, draw).until(updates)


def total(ages: Counter[int]) -> int:
    return sum(age * count for age, count in ages.items())


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))
