"""Two policies hear the same facts of a random job, with joins, departures and ends, and must answer alike."""

import random
from collections.abc import Callable, Mapping

from psserver.policies import Abandon, Cancel, Commit, Decision, Done, Event, Grant, Join, Leave, Ready, build

Named = tuple[str, Mapping[str, object]]
# What of the decisions is compared.
Seen = Callable[[list[Decision]], object]
WORKERS = 4


class Pair:
    def __init__(self, one: Named, other: Named, seen: Seen) -> None:
        self.one, self.other = (build(name, knobs, WORKERS) for name, knobs in (one, other))
        self.seen = seen
        self.facts: list[Event] = []
        self.here: list[str] = []
        self.idle: list[str] = []
        self.asking: list[str] = []
        self.held: dict[str, int] = {}
        self.updates = 0
        self._tickets = 0

    def tell(self, event: Event) -> None:
        self.facts.append(event)
        decisions = self.one.step(event)
        assert self.seen(self.other.step(event)) == self.seen(decisions), self.facts
        for decision in decisions:
            match decision:
                case Grant(worker, ticket):
                    self.asking.remove(worker)
                    self.held[worker] = ticket
                case Cancel(ticket):
                    worker = next(w for w, held in self.held.items() if held == ticket)
                    del self.held[worker]
                    self.idle.append(worker)
        self.updates += any(type(decision).__name__ == "Apply" for decision in decisions)

    def play(self, dice: random.Random, steps: int, *, churn: bool = True) -> None:
        names = [f"w{rank}" for rank in range(WORKERS)]
        for worker in names:
            self.join(worker)
        now = 0.0
        for _ in range(steps):
            now += dice.random()
            worker, move = dice.choice(names), dice.randrange(20) if churn else 9
            if worker not in self.here:
                self.join(worker)
            elif worker in self.held:
                ticket = self.held.pop(worker)
                self.idle.append(worker)
                if move == 1:
                    self.tell(Abandon(worker, ticket, "test"))
                else:
                    self.tell(Commit(worker, ticket, 1, 0.0, 0.0, now))
            elif move == 0:
                self.leave(worker)
            elif worker in self.idle and move == 2 and len(self.idle) + len(self.asking) < len(self.here):
                self.idle.remove(worker)
                self.tell(Done(worker))
                self.leave(worker)
            elif worker in self.idle:
                self.idle.remove(worker)
                self.asking.append(worker)
                self._tickets += 1
                self.tell(Ready(worker, self._tickets))

    def join(self, worker: str) -> None:
        self.here.append(worker)
        self.idle.append(worker)
        self.tell(Join(worker, int(worker[1:])))

    def leave(self, worker: str) -> None:
        self.here.remove(worker)
        for where in (self.idle, self.asking):
            if worker in where:
                where.remove(worker)
        self.held.pop(worker, None)
        self.tell(Leave(worker, "killed"))
