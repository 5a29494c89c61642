"""Pushed payloads that wait for the decision about their ticket."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(slots=True)
class OpenTicket:
    """A granted ticket as the shard knows it."""

    ticket: int
    worker: str
    turn: int | None
    initialise: bool
    sealed: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """A payload on its way in. Only the stream that began it writes to it; `cut` ends that stream."""

    ticket: int
    values: Floats
    cut: Callable[[], object] = lambda: None
    # Whose it is.
    worker: str = ""
    # None of its numbers is so large that an update might not be finite for it (`psserver.shard.payload_checks`).
    ordinary: bool = True
    # The sum of the squares of its gradient.
    squares: float = 0.0


class Staging:
    """One payload per ticket: the first that is complete. The same again is taken for it, another one is not.

    So a receipt says which payload is meant, and what was received is what is committed. One push of a ticket
    is under way at a time.

    Payloads of a round that is summed in a fixed order (turn) are admitted so
    that at most `limit` of them are held out of order: a payload is let in
    when fewer are held, or when it is the next to be summed. All shards agree
    on which is next, so every push ends.
    """

    def __init__(self, elements: int, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"staging limit is {limit}; expected at least 1")
        self._elements = elements
        self._limit = limit
        # Changed by `open`, `close` and `restore` only: their turns are ordered beside them.
        self.tickets: dict[int, OpenTicket] = {}
        # (turn, ticket) of the open ones that have a turn, the next first, and possibly of some that are closed.
        self._turns: list[tuple[int, int]] = []
        self._incoming: dict[int, Slot] = {}
        self._complete: dict[int, Slot] = {}
        self._free: list[Floats] = []
        # Payload buffers that exist, wherever they are: a sum may lie in one.
        self.own = 0
        # The most payload buffers that were ever held at once.
        self.peak = 0

    @property
    def held(self) -> int:
        """Payload buffers in use."""
        return len(self._complete) + len(self._incoming)

    @property
    def spare(self) -> int:
        """Payload buffers that wait to be used again."""
        return len(self._free)

    def trim(self) -> None:
        """Give those back."""
        self.own -= len(self._free)
        self._free.clear()

    @property
    def owned(self) -> list[str]:
        """Whose each payload is that is held."""
        return [slot.worker for slot in (*self._complete.values(), *self._incoming.values())]

    def next_in_turn(self, ticket: int) -> bool:
        """The ticket's payload is the next to be summed, in a round of which the order is fixed."""
        turn = self.tickets[ticket].turn
        return turn is not None and turn == self._first_turn()

    def next_is_held(self) -> bool:
        """A payload of a round whose order is fixed is here, or on its way in, and is the next to be summed; of any
        other round, any."""
        held = [*self._complete, *self._incoming]
        first = self._first_turn()
        if first is None:
            return bool(held)
        return any(n in self.tickets and self.tickets[n].turn == first for n in held)

    def _first_turn(self) -> int | None:
        turns = self._turns
        while turns and turns[0][1] not in self.tickets:
            heappop(turns)
        return turns[0][0] if turns else None

    def open(self, ticket: OpenTicket) -> None:
        """It was granted: its payload may come."""
        self.tickets[ticket.ticket] = ticket
        if ticket.turn is None:
            return
        heappush(self._turns, (ticket.turn, ticket.ticket))
        if len(self._turns) > 2 * len(self.tickets) + 16:
            # Where nobody asks who is next, closed ones stay: half of them at least are such.
            self._turns = [each for each in self._turns if each[1] in self.tickets]
            heapify(self._turns)

    def incoming(self, ticket: int) -> Slot | None:
        """The ticket's payload that is on its way in."""
        return self._incoming.get(ticket)

    def admits(self, ticket: int) -> bool:
        """May this open ticket's payload come in now?"""
        turn = self.tickets[ticket].turn
        if turn is None or self.held < self._limit or ticket in self._complete:
            return True
        return turn == self._first_turn()

    def begin(self, ticket: int, cut: Callable[[], object] = lambda: None) -> Slot:
        """A slot for the payload of an open, unsealed, admitted ticket, of which no other is under way.

        `cut` ends the stream that brings it.
        """
        assert ticket not in self._incoming, f"a push of ticket {ticket} is under way"
        values = self._free.pop() if self._free else self._new()
        opened = self.tickets.get(ticket)
        slot = self._incoming[ticket] = Slot(ticket, values, cut, opened.worker if opened else "")
        self.peak = max(self.peak, self.held)
        return slot

    def _new(self) -> Floats:
        values = np.empty(self._elements, np.float32)
        self.own += 1
        return values

    def finish(self, slot: Slot) -> bool:
        """The payload is complete. Is it the ticket's? Not if that is closed or sealed, or has another one already."""
        del self._incoming[slot.ticket]
        opened = self.tickets.get(slot.ticket)
        before = self._complete.get(slot.ticket)
        if opened is not None and not opened.sealed and before is None:
            self._complete[slot.ticket] = slot
            return True
        same = before is not None and np.array_equal(
            slot.values.view(np.uint32), before.values.view(np.uint32)
        )
        self.recycle(slot.values)
        return opened is not None and not opened.sealed and same

    def give_up(self, slot: Slot) -> None:
        """The stream broke or its payload was refused."""
        del self._incoming[slot.ticket]
        self.recycle(slot.values)

    def take(self, ticket: int) -> Floats:
        """The payload of a committed ticket; it leaves the staging, and the ticket is closed."""
        slot = self._complete.pop(ticket)
        self.close(ticket)
        return slot.values

    def ordinary(self, ticket: int) -> bool:
        """The complete payload of a ticket, if it has one, is ordinary."""
        slot = self._complete.get(ticket)
        return slot is None or slot.ordinary

    def squares(self, ticket: int) -> float:
        """The sum of the squares of the gradient in the complete payload of a ticket; 0 without one."""
        slot = self._complete.get(ticket)
        return 0.0 if slot is None else slot.squares

    def payload(self, ticket: int) -> Floats:
        """The complete payload of a ticket, which stays."""
        return self._complete[ticket].values

    def holds(self, ticket: int) -> bool:
        return ticket in self._complete

    def close(self, ticket: int) -> None:
        """Free what the ticket still has. Streams under way find out when they finish."""
        self.tickets.pop(ticket, None)
        slot = self._complete.pop(ticket, None)
        if slot is not None:
            self.recycle(slot.values)

    def recycle(self, values: Floats) -> None:
        """A payload is no longer needed."""
        if len(self._free) < self._limit:
            self._free.append(values)
        else:
            self.own -= 1

    # State

    def state(self) -> tuple[list[OpenTicket], dict[int, Floats]]:
        """Open tickets, and the complete payload of each that has one (not copied)."""
        return [replace(t) for t in self.tickets.values()], {n: s.values for n, s in self._complete.items()}

    def restore(self, tickets: Iterable[OpenTicket], payloads: Mapping[int, Floats]) -> None:
        """Take up what `state` gave, while nothing is staged; payloads are copied."""
        self.tickets, self._turns = {}, []
        for ticket in tickets:
            self.open(replace(ticket))
        for number, values in payloads.items():
            slot = self.begin(number)
            slot.values[...] = values
            self._complete[number] = self._incoming.pop(number)
