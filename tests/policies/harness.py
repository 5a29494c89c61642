"""Drives one policy without a coordinator: events go in one by one, and what follows from its decisions is kept."""

from collections.abc import Iterable
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
    Policy,
    Ready,
    build,
)


@dataclass
class PolicyHarness:
    """Gives out ticket numbers, counts versions, remembers fates. Workers are named w0, w1, ... by rank."""

    policy: Policy
    version: int = 0
    # worker -> its open ticket
    held: dict[str, int] = field(default_factory=dict)
    # ticket -> the version it was granted
    base: dict[int, int] = field(default_factory=dict)
    owner: dict[int, str] = field(default_factory=dict)
    # staleness of every applied contribution, in order
    staleness: list[int] = field(default_factory=list)
    updates: list[Apply] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    cancelled: dict[int, str] = field(default_factory=dict)
    folded: list[int] = field(default_factory=list)
    # versions that the open tickets given up by a drop, a cancel or a departure had aged
    given_up: int = 0
    _tickets: int = 0

    def join(self, *workers: str) -> None:
        for worker in workers:
            self.tell(Join(worker, int(worker[1:])))

    def ready(self, *workers: str) -> None:
        for worker in workers:
            self._tickets += 1
            self.owner[self._tickets] = worker
            self.tell(Ready(worker, self._tickets))

    def commit(self, worker: str, *, again: bool = True, samples: int = 8) -> list[Decision]:
        """The worker commits what it holds and, unless told otherwise, asks for more in the same breath."""
        ticket = self.held.pop(worker)
        decisions = self.tell(Commit(worker, ticket, samples, 0.5, 1.0))
        if again:
            self.ready(worker)
        return decisions

    def abandon(self, worker: str) -> None:
        ticket = self.held.pop(worker)
        self.given_up += self.version - self.base[ticket]
        self.tell(Abandon(worker, ticket, "test"))

    def done(self, worker: str) -> list[Decision]:
        return self.tell(Done(worker))

    def leave(self, worker: str) -> list[Decision]:
        if worker in self.held:
            self.given_up += self.version - self.base[self.held.pop(worker)]
        return self.tell(Leave(worker, "killed"))

    def tell(self, event: Event) -> list[Decision]:
        decisions = self.policy.step(event)
        for decision in decisions:
            self._follow(decision)
        return decisions

    def _follow(self, decision: Decision) -> None:
        match decision:
            case Grant(worker, ticket):
                assert worker not in self.held
                self.held[worker], self.base[ticket] = ticket, self.version
            case Fold(ticket):
                self.folded.append(ticket)
            case Apply(parts):
                self.staleness += [self.version - self.base[part.ticket] for part in parts]
                self.updates.append(decision)
                self.version += 1
            case Drop(ticket, reason):
                self.given_up += self.version - self.base[ticket]
                self.dropped[ticket] = reason
            case Cancel(ticket, reason):
                self.given_up += self.version - self.base[ticket]
                self.cancelled[ticket] = reason
                del self.held[self.owner[ticket]]

    def waits(self, worker: str) -> bool:
        return self.policy.explain(worker) is not None

    def authors(self, update: Apply) -> list[str]:
        """Whose contributions an update was made of, in the order of summation."""
        return [self.owner[part.ticket] for part in update.parts]

    @property
    def in_flight(self) -> int:
        """Versions that the open tickets have aged so far."""
        return sum(self.version - self.base[ticket] for ticket in self.held.values())


def start_policy(name: str, workers: int = 3, **knobs: object) -> PolicyHarness:
    """A named policy with all its workers ready and granted version 0."""
    harness = PolicyHarness(build(name, knobs, workers))
    everyone = [f"w{rank}" for rank in range(workers)]
    harness.join(*everyone)
    harness.ready(*everyone)
    return harness


def kinds(decisions: Iterable[Decision]) -> list[str]:
    return [type(decision).__name__ for decision in decisions]
