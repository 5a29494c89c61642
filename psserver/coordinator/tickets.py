"""The ticket table: one ticket, at most one contribution, at most one fate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from psserver.coordinator.roster import REMEMBERED_TICKETS
from psserver.coordinator.units import TicketPart
from pswire import protocol

# Limit of open tickets of one worker: the current one and the next.
AHEAD = 2

# open: granted; pending: committed; settled: it has its fate.
TicketState = Literal["open", "pending", "settled"]
# Events of a ticket after its grant: kinds of log entries.
TicketEvent = Literal["install", "commit", "fold", "apply", "drop", "cancel", "abandon"]

# All legal transitions.
TRANSITIONS: Final[Mapping[TicketState, Mapping[TicketEvent, TicketState]]] = {
    "open": {"install": "settled", "commit": "pending", "cancel": "settled", "abandon": "settled"},
    "pending": {"fold": "pending", "apply": "settled", "drop": "settled"},
    "settled": {},
}


class TicketError(ValueError):
    """An event that a ticket's state does not allow. The text names both, and the states that allow it."""

    def __init__(self, event: TicketEvent, number: int, state: str) -> None:
        allowed = " or ".join(known for known, events in TRANSITIONS.items() if event in events)
        super().__init__(f"{event} of ticket {number}, which is {state}; expected one that is {allowed}")


@dataclass(slots=True)
class Ticket:
    """A ticket. `base`: the version that it started from. `index`: number of its grant in the decision log."""

    number: int
    worker: str
    incarnation: int
    base: int
    granted_at: float
    index: int
    state: TicketState = "open"
    initialise: bool = False
    samples: int = 0
    loss: float = 0.0
    fate: protocol.Disposition | None = None
    # When the worker was granted its former ticket; None for its first.
    former: float | None = None
    # Its part of a work unit, if the job deals them.
    part: TicketPart | None = None


@dataclass(slots=True)
class TicketTable:
    """Open and pending tickets, and each worker's most recent settled ones (bounded).

    Lookups that run for every message use an index, or scan the few tickets of one worker.
    """

    next_number: int = 1
    live: dict[int, Ticket] = field(default_factory=dict)
    # Worker -> its remembered settled tickets, oldest first.
    settled: dict[str, list[Ticket]] = field(default_factory=dict)
    # Worker -> its open tickets, oldest first; without entry if it has none. Two only under a policy that grants ahead.
    opened: dict[str, tuple[Ticket, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.opened = {}
        for ticket in self.live.values():
            if ticket.state == "open":
                self._index(ticket)

    # Questions

    def find(self, number: int, worker: str) -> Ticket | None:
        """Return the worker's own ticket of that number; None if it has none."""
        ticket = self.live.get(number)
        if ticket is not None:
            return ticket if ticket.worker == worker else None
        return next((t for t in self.settled.get(worker, ()) if t.number == number), None)

    def owner(self, number: int) -> str | None:
        """Return whose ticket it is or was. Scans all tickets: for explanations, not for every message."""
        ticket = self.live.get(number)
        if ticket is not None:
            return ticket.worker
        return next(
            (w for w, recent in self.settled.items() if any(t.number == number for t in recent)), None
        )

    def allowing(self, event: TicketEvent, number: int) -> Ticket:
        """Return the ticket of that number. Raises TicketError if its state does not allow `event`."""
        ticket = self.live.get(number)
        if ticket is None:
            raise TicketError(event, number, "settled or unknown")
        if event not in TRANSITIONS[ticket.state]:
            raise TicketError(event, number, ticket.state)
        return ticket

    def open_of(self, worker: str) -> tuple[Ticket, ...]:
        """Return the worker's open tickets, oldest first."""
        return self.opened.get(worker, ())

    def recent_of(self, worker: str) -> list[Ticket]:
        """Return the worker's remembered settled tickets, oldest first."""
        return list(self.settled.get(worker, ()))

    def in_state(self, state: TicketState) -> list[Ticket]:
        return [t for t in self.live.values() if t.state == state]

    # Changes

    def allocate(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def open(self, ticket: Ticket) -> None:
        """Add a granted ticket."""
        assert len(self.open_of(ticket.worker)) < AHEAD, (
            f"{ticket.worker} holds more than {AHEAD} open tickets"
        )
        self.live[ticket.number] = ticket
        self._index(ticket)

    def _index(self, ticket: Ticket) -> None:
        self.opened[ticket.worker] = (*self.open_of(ticket.worker), ticket)

    def commit(self, ticket: Ticket) -> None:
        """Move an open ticket to pending. Raises TicketError."""
        self._move(ticket, "commit")

    def settle(self, ticket: Ticket, event: TicketEvent, fate: protocol.Disposition) -> None:
        """Settle a ticket by `event`, with its fate. Raises TicketError."""
        self._move(ticket, event)
        ticket.fate = fate
        del self.live[ticket.number]
        recent = self.settled.setdefault(ticket.worker, [])
        recent.append(ticket)
        if len(recent) > REMEMBERED_TICKETS:
            del recent[0]

    def _move(self, ticket: Ticket, event: TicketEvent) -> None:
        after = TRANSITIONS[ticket.state].get(event)
        if after is None:
            raise TicketError(event, ticket.number, ticket.state)
        if ticket.state == "open":
            opened = self.opened.pop(ticket.worker)
            if len(opened) > 1:
                self.opened[ticket.worker] = tuple(other for other in opened if other is not ticket)
        ticket.state = after
