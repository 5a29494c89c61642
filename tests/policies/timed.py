"""One policy with a clock: workers take the times that a test says, and timers fire."""

from dataclasses import replace

from psserver.policies import (
    Apply,
    Cancel,
    ClearTimer,
    Commit,
    Decision,
    Grant,
    Join,
    Policy,
    Ready,
    SetTimer,
    Timer,
    build,
)
from tests.policies.harness import PolicyHarness


class Clocked(PolicyHarness):
    """A named policy whose workers hold a ticket each, from second 0 on. Events carry their times."""

    def __init__(self, name: str, workers: int = 3, **knobs: object) -> None:
        super().__init__(build(name, knobs, workers))
        self.workers = [f"w{rank}" for rank in range(workers)]
        self.now = self.began = 0.0
        self.timer: float | None = None
        # ticket -> when it will be committed
        self.due: dict[int, float] = {}
        # Workers whose ticket was cancelled; they ask again.
        self.idle: list[str] = []
        self.join(*self.workers)
        self.ready(*self.workers)

    def twin(self, policy: Policy) -> "Clocked":
        """The same job at the same moment, decided by another policy from here on."""
        copy = object.__new__(Clocked)
        vars(copy).update(vars(self))
        copy.policy, copy.updates, copy.dropped, copy.cancelled = policy, [], {}, {}
        copy.held, copy.base, copy.owner = dict(self.held), dict(self.base), dict(self.owner)
        copy.due, copy.idle = dict(self.due), list(self.idle)
        return copy

    def tell(self, event: "Commit | Ready | Join | Timer | object") -> list[Decision]:  # type: ignore[override]
        if isinstance(event, Timer):
            self.now, self.timer = event.t, None
        return super().tell(replace(event, t=self.now))  # type: ignore[type-var]

    def _follow(self, decision: Decision) -> None:
        match decision:
            case SetTimer(_, at):
                self.timer = at / 1e6
            case ClearTimer():
                self.timer = None
            case Grant() | Apply():
                self.began = self.now
            case Cancel(ticket):
                self.idle.append(self.owner[ticket])
        super()._follow(decision)

    def commits(self, worker: str, t: float) -> list[Decision]:
        """The worker commits at second `t` and asks for more. Returns the decisions on the commit."""
        self.now = t
        return self.commit(worker)

    def round(self, delays: dict[str, float]) -> None:
        """Up to the next update: each ticket without a time yet is committed after its worker's delay."""
        made = len(self.updates)
        while len(self.updates) == made:
            idle, self.idle = self.idle, []
            self.ready(*idle)
            for worker, ticket in self.held.items():
                self.due.setdefault(ticket, self.now + delays[worker])
            tickets = {ticket: self.due[ticket] for ticket in self.held.values()}
            ticket = min(tickets, key=lambda each: tickets[each], default=None)
            if self.timer is not None and (ticket is None or self.timer <= tickets[ticket]):
                self.tell(Timer("deadline", self.timer))
            else:
                assert ticket is not None, "nothing is left to happen"
                self.commits(self.owner[ticket], max(self.now, tickets[ticket]))
