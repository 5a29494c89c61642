"""The ticket table: one ticket, at most one contribution, at most one fate."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from psserver.coordinator.outputs import DispositionNotice

# Enough for any worker that resends its last commits; older ones are unknown.
REMEMBERED = 16

TicketState = Literal["open", "pending", "settled"]


@dataclass(slots=True)
class Ticket:
    number: int
    worker: str
    incarnation: int
    base: int
    granted_at: float
    # Number of its grant in the decision log.
    index: int
    state: TicketState = "open"
    initialise: bool = False
    samples: int = 0
    loss: float = 0.0
    fate: DispositionNotice | None = None


@dataclass(slots=True)
class TicketTable:
    """Open and pending tickets, and each worker's most recent settled ones (bounded)."""

    next_number: int = 1
    live: dict[int, Ticket] = field(default_factory=dict)
    settled: dict[str, deque[Ticket]] = field(default_factory=dict)

    def allocate(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def open(self, ticket: Ticket) -> None:
        self.live[ticket.number] = ticket

    def find(self, number: int) -> Ticket | None:
        if number in self.live:
            return self.live[number]
        for tickets in self.settled.values():
            for ticket in tickets:
                if ticket.number == number:
                    return ticket
        return None

    def open_of(self, worker: str) -> list[Ticket]:
        return [t for t in self.live.values() if t.worker == worker and t.state == "open"]

    def recent_of(self, worker: str) -> list[Ticket]:
        return list(self.settled.get(worker, ()))

    def settle(self, number: int, fate: DispositionNotice) -> Ticket:
        ticket = self.live.pop(number)
        ticket.state, ticket.fate = "settled", fate
        self.settled.setdefault(ticket.worker, deque(maxlen=REMEMBERED)).append(ticket)
        return ticket

    def in_state(self, state: TicketState) -> list[Ticket]:
        return [t for t in self.live.values() if t.state == state]
