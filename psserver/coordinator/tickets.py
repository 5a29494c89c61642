"""The ticket table: one ticket, at most one contribution, at most one fate."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from psserver.coordinator.outputs import DispositionNotice

# Enough for any worker that resends its last commits; older ones are unknown.
REMEMBERED = 16

# Open tickets of one worker, at most: what it works on, and the next.
AHEAD = 2

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
    """Open and pending tickets, and each worker's most recent settled ones (bounded).

    Everything that is asked for each message is found by an index, or among the few tickets of its worker.
    """

    next_number: int = 1
    live: dict[int, Ticket] = field(default_factory=dict)
    settled: dict[str, deque[Ticket]] = field(default_factory=dict)
    # Worker -> its open tickets, oldest first; nobody without any. A second one only where the policy grants ahead.
    opened: dict[str, tuple[Ticket, ...]] = field(default_factory=dict)

    def allocate(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def open(self, ticket: Ticket) -> None:
        self.live[ticket.number] = ticket
        opened = self.opened[ticket.worker] = (*self.open_of(ticket.worker), ticket)
        assert len(opened) <= AHEAD, f"{ticket.worker} holds {len(opened)} open tickets"

    def find(self, number: int, worker: str) -> Ticket | None:
        """The worker's own ticket of that number."""
        ticket = self.live.get(number)
        if ticket is not None:
            return ticket if ticket.worker == worker else None
        return next((t for t in self.settled.get(worker, ()) if t.number == number), None)

    def owner(self, number: int) -> str | None:
        """Whose ticket it is or was. Looks at all of them: for sentences, not for every message."""
        ticket = self.live.get(number)
        if ticket is not None:
            return ticket.worker
        return next(
            (w for w, recent in self.settled.items() if any(t.number == number for t in recent)), None
        )

    def open_of(self, worker: str) -> tuple[Ticket, ...]:
        """Its open tickets, oldest first."""
        return self.opened.get(worker, ())

    def commit(self, ticket: Ticket) -> None:
        """An open ticket's contribution exists; its fate is pending."""
        self._close(ticket)
        ticket.state = "pending"

    def recent_of(self, worker: str) -> list[Ticket]:
        return list(self.settled.get(worker, ()))

    def settle(self, number: int, fate: DispositionNotice) -> Ticket:
        ticket = self.live.pop(number)
        if ticket.state == "open":
            self._close(ticket)
        ticket.state, ticket.fate = "settled", fate
        recent = self.settled.get(ticket.worker)
        if recent is None:
            recent = self.settled[ticket.worker] = deque(maxlen=REMEMBERED)
        recent.append(ticket)
        return ticket

    def _close(self, ticket: Ticket) -> None:
        opened = self.opened.pop(ticket.worker)
        if len(opened) > 1:
            self.opened[ticket.worker] = tuple(other for other in opened if other is not ticket)

    def in_state(self, state: TicketState) -> list[Ticket]:
        return [t for t in self.live.values() if t.state == state]
