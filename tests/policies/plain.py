"""A plain reference for the policy machine: each named policy spelled out, everything computed anew at every step.

Slow and obvious. The machine must make the same decisions on the same facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psserver.policies import (
    Abandon,
    Apply,
    Cancel,
    Commit,
    Decision,
    Done,
    Drop,
    Event,
    Fold,
    Grant,
    Join,
    Leave,
    Part,
    Ready,
)


@dataclass
class Plain:
    name: str
    workers: int
    backup: int = 0
    aggregate: int = 1
    max_staleness: int = 4
    on_stale: str = "drop"
    compensation: float = 0.04
    slack: int = 3
    version: int = 0
    peak: int = 0
    rank: dict[str, int] = field(default_factory=dict)
    clock: dict[str, int] = field(default_factory=dict)
    # Worker -> the clock at which it left or was done.
    left_at: dict[str, int] = field(default_factory=dict)
    # The greatest `slowest` after any commit.
    floor: int = 0
    # Those that were granted a ticket since they joined.
    granted: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    asking: dict[str, int] = field(default_factory=dict)
    # ticket -> (worker, base)
    open: dict[int, tuple[str, int]] = field(default_factory=dict)
    # (worker, rank, part), in the order in which they will be summed; the first `folded` are
    buffer: list[tuple[str, int, Part]] = field(default_factory=list)
    folded: int = 0

    @property
    def ordered(self) -> bool:
        return self.name == "sync" and self.backup == 0

    @property
    def active(self) -> list[str]:
        return [worker for worker in self.rank if worker not in self.done]

    @property
    def contributed(self) -> list[str]:
        return [worker for worker, _, _ in self.buffer]

    @property
    def slowest(self) -> int:
        return min((self.clock[worker] for worker in self.active), default=0)

    def step(self, event: Event) -> list[Decision]:
        decisions = self.hear(event)
        if self.buffer and self.fires() and not self.old():
            decisions += self.apply()
        else:
            decisions += self.fold()
        for worker in sorted(self.asking, key=lambda w: self.rank[w]):
            if self.may_start(worker):
                ticket = self.asking.pop(worker)
                self.open[ticket] = (worker, self.version)
                self.granted.append(worker)
                decisions.append(Grant(worker, ticket, self.rank[worker] if self.ordered else None))
        return decisions

    def hear(self, event: Event) -> list[Decision]:
        match event:
            case Join(worker, rank):
                self.rank[worker] = rank
                self.clock[worker] = max(self.floor, self.left_at.pop(worker, 0))
                self.peak = max(self.peak, len(self.active))
            case Leave(worker, _):
                if worker not in self.done:
                    self.left_at[worker] = self.clock[worker]
                del self.rank[worker], self.clock[worker]
                self.granted = [w for w in self.granted if w != worker]
                self.done = [w for w in self.done if w != worker]
                self.asking.pop(worker, None)
                self.open = {t: held for t, held in self.open.items() if held[0] != worker}
            case Done(worker):
                self.done.append(worker)
                self.asking.pop(worker, None)
                self.left_at[worker] = self.clock[worker]
                if all(w in self.done for w in self.granted):
                    # A phase is over: clocks start anew.
                    self.clock, self.left_at, self.floor = dict.fromkeys(self.rank, 0), {}, 0
            case Ready(worker, ticket):
                self.asking[worker] = ticket
            case Abandon(_, ticket, _):
                del self.open[ticket]
            case Commit(worker, ticket):
                return self.commit(worker, ticket)
        return []

    def commit(self, worker: str, ticket: int) -> list[Decision]:
        _, base = self.open.pop(ticket)
        self.clock[worker] += 1
        self.floor = max(self.floor, self.slowest)
        staleness = self.version - base
        factor, compensation = 1.0, 0.0
        limit = 0 if self.name == "sync" else self.max_staleness
        if self.name in ("sync", "bounded") and staleness > limit:
            match "drop" if self.name == "sync" else self.on_stale:
                case "drop":
                    return [Drop(ticket, "stale")]
                case "downweight":
                    factor = (limit + 1) / (staleness + 1)
                case "compensate":
                    compensation = self.compensation
        self.buffer.append((worker, self.rank[worker], Part(ticket, factor, compensation)))
        if self.ordered:
            self.buffer[self.folded :] = sorted(self.buffer[self.folded :], key=lambda entry: entry[1])
        return []

    def fires(self) -> bool:
        if self.name == "sync":
            present = len(set(self.active) | set(self.contributed))
            needed = min(max(self.workers, self.peak, present) - self.backup, present)
            return len(set(self.contributed)) >= max(1, needed)
        size = self.aggregate if self.name == "bounded" else 1
        return len(self.buffer) >= size or not (self.open or self.active)

    def old(self) -> list[str]:
        """For whose work a blocking update waits."""
        if (self.name, self.on_stale) != ("bounded", "block"):
            return []
        return [w for w, base in self.open.values() if self.version + 1 - base > self.max_staleness]

    def apply(self) -> list[Decision]:
        parts = tuple(part for _, _, part in self.buffer)
        self.buffer, self.folded = [], 0
        self.version += 1
        cancelled = list(self.open) if self.backup else []
        reason = f"version {self.version} was made without it"
        for ticket in cancelled:
            del self.open[ticket]
        return [Apply(parts, 1 / len(parts)), *(Cancel(ticket, reason) for ticket in cancelled)]

    def fold(self) -> list[Decision]:
        decisions: list[Decision] = []
        for _, rank, part in self.buffer[self.folded :]:
            to_come = [w for w in self.active if w not in self.contributed and self.rank[w] < rank]
            if self.ordered and to_come:
                break
            self.folded += 1
            decisions.append(Fold(part.ticket, part.factor, part.compensation))
        return decisions

    def may_start(self, worker: str) -> bool:
        match self.name:
            case "sync":
                return worker not in self.contributed
            case "ssp":
                return self.clock[worker] - self.slowest <= self.slack
            case "bounded" if self.max_staleness == 0 and self.buffer and self.fires() and self.old():
                return False
        return True


def plain(name: str, knobs: Mapping[str, object], workers: int) -> Plain:
    reference = Plain(name, workers)
    for knob, value in knobs.items():
        setattr(reference, knob, value)
    return reference
