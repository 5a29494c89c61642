"""Pushed payloads that wait for the decision about their tickets."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from psserver.shard.tables.group import nbytes_of, same_rows
from pswire.model.rows import Rows

Floats = NDArray[np.float32]


@dataclass(slots=True)
class OpenTicket:
    """A granted ticket, as the shard knows it."""

    ticket: int
    worker: str
    turn: int | None
    initialise: bool
    sealed: bool = False
    # The version that it was granted; -1 for initial values.
    version: int = -1


@dataclass(slots=True, eq=False)
class Slot:
    """An incoming payload. Only the stream that began it writes to it; `cut` ends that stream."""

    ticket: int
    values: Floats
    cut: Callable[[], object] = lambda: None
    # The sum of the squares of its gradient.
    squares: float = 0.0
    # Rows of tables; empty without any.
    rows: Rows = ()


class Staging:
    """Payload buffers: one payload per ticket, the first that is complete.

    An identical repetition counts as the same payload; a different one is refused. A receipt therefore identifies the
    payload, and what was received is what is committed. Only one push of a ticket may be in progress at a time.

    Payloads of a round that is summed in a fixed order (turn) are admitted so that at most `limit` of them are held out
    of order: a payload is admitted when fewer are held, or when it is the next in turn. All shards agree on which is
    next, so every push ends.
    """

    def __init__(self, elements: int, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"staging limit is {limit}; expected at least 1")
        self._elements = elements
        self._limit = limit
        # Changed by `open`, `close` and `restore` only, which also keep `_turns`.
        self.tickets: dict[int, OpenTicket] = {}
        # Heap of (turn, ticket) for open tickets that have a turn, and possibly for some closed ones.
        self._turns: list[tuple[int, int]] = []
        self._incoming: dict[int, Slot] = {}
        self._complete: dict[int, Slot] = {}
        self._free: list[Floats] = []
        # All payload buffers that exist, including one that holds a sum.
        self.own = 0
        # The most payload buffers ever held at once.
        self.peak = 0

    @property
    def held(self) -> int:
        """The number of payload buffers in use."""
        return len(self._complete) + len(self._incoming)

    def trim(self) -> None:
        """Release the free payload buffers."""
        self.own -= len(self._free)
        self._free.clear()

    @property
    def free(self) -> int:
        """The number of payload buffers that are kept to be used again."""
        return len(self._free)

    def is_next(self, ticket: int) -> bool:
        """Return True if the ticket's payload goes before all others: the next in turn in a round with a fixed order,
        that of the oldest ticket in any other round. All shards agree on it."""
        turn = self.tickets[ticket].turn
        return turn == self._first_turn() if turn is not None else ticket == self._oldest()

    def next_is_held(self) -> bool:
        """Return True if the payload that goes before all others is held or incoming."""
        first = self._first_turn()
        if first is None:
            oldest = self._oldest()
            return oldest is None or oldest in self._complete or oldest in self._incoming
        held = [*self._complete, *self._incoming]
        return any(n in self.tickets and self.tickets[n].turn == first for n in held)

    def _oldest(self) -> int | None:
        # In the order of the log, as shards that were restored have them, too.
        return next(iter(self.tickets), None)

    def _first_turn(self) -> int | None:
        turns = self._turns
        while turns and turns[0][1] not in self.tickets:
            heappop(turns)
        return turns[0][0] if turns else None

    def open(self, ticket: OpenTicket) -> None:
        """Record a granted ticket: its payload may arrive."""
        self.tickets[ticket.ticket] = ticket
        if ticket.turn is None:
            return
        heappush(self._turns, (ticket.turn, ticket.ticket))
        if len(self._turns) > 2 * len(self.tickets) + 16:
            # Closed tickets accumulate until the next turn is asked for; here at least half of the entries are closed.
            self._turns = [each for each in self._turns if each[1] in self.tickets]
            heapify(self._turns)

    def incoming(self, ticket: int) -> Slot | None:
        """Return the ticket's incoming payload."""
        return self._incoming.get(ticket)

    def admits(self, ticket: int) -> bool:
        """Return True if this open ticket's payload may be received now."""
        turn = self.tickets[ticket].turn
        if turn is None or self.held < self._limit or ticket in self._complete:
            return True
        return turn == self._first_turn()

    def begin(self, ticket: int, cut: Callable[[], object] = lambda: None) -> Slot:
        """Reserve a slot for the payload of an open, unsealed, admitted ticket without another push in progress.

        `cut` ends the stream that delivers it.
        """
        assert ticket not in self._incoming, f"a push of ticket {ticket} is under way"
        values = self._free.pop() if self._free else self._new()
        slot = self._incoming[ticket] = Slot(ticket, values, cut)
        self.peak = max(self.peak, self.held)
        return slot

    def _new(self) -> Floats:
        values = np.empty(self._elements, np.float32)
        self.own += 1
        return values

    def finish(self, slot: Slot) -> bool:
        """Complete a payload. Return False if the ticket is closed or sealed, or has a different payload already."""
        del self._incoming[slot.ticket]
        opened = self.tickets.get(slot.ticket)
        before = self._complete.get(slot.ticket)
        if opened is not None and not opened.sealed and before is None:
            self._complete[slot.ticket] = slot
            return True
        same = (
            before is not None
            and np.array_equal(slot.values.view(np.uint32), before.values.view(np.uint32))
            and same_rows(slot.rows, before.rows)
        )
        self.recycle(slot.values)
        return opened is not None and not opened.sealed and same

    def give_up(self, slot: Slot) -> None:
        """Release the slot of a stream that broke or whose payload was refused."""
        del self._incoming[slot.ticket]
        self.recycle(slot.values)

    def take(self, ticket: int) -> Floats:
        """Remove and return the payload of a committed ticket, and close the ticket."""
        slot = self._complete.pop(ticket)
        self.close(ticket)
        return slot.values

    def squares(self, ticket: int) -> float:
        """Return the sum of squares of the gradient in the ticket's complete payload; 0 without one."""
        slot = self._complete.get(ticket)
        return 0.0 if slot is None else slot.squares

    def all_rows(self) -> list[Rows]:
        """Return the rows of all complete payloads that have some."""
        return [slot.rows for slot in list(self._complete.values()) if slot.rows]

    def rows(self, ticket: int) -> Rows:
        """Return the rows of a ticket's complete payload."""
        return self._complete[ticket].rows

    @property
    def row_bytes(self) -> int:
        """The memory of the rows of all complete payloads."""
        return sum(nbytes_of(slot.rows) for slot in list(self._complete.values()) if slot.rows)

    def holds(self, ticket: int) -> bool:
        return ticket in self._complete

    def close(self, ticket: int) -> None:
        """Close a ticket and free its payload. Streams in progress find out when they finish."""
        self.tickets.pop(ticket, None)
        slot = self._complete.pop(ticket, None)
        if slot is not None:
            self.recycle(slot.values)

    def recycle(self, values: Floats) -> None:
        """Reuse or release the buffer of a payload that is no longer needed."""
        if len(self._free) < self._limit:
            self._free.append(values)
        else:
            self.own -= 1

    # State

    def state(self) -> tuple[list[OpenTicket], dict[int, Floats], dict[int, Rows]]:
        """Return the open tickets, and the complete payload of each that has one, and its rows (not copied)."""
        complete = self._complete
        rows = {n: slot.rows for n, slot in complete.items() if slot.rows}
        return [replace(t) for t in self.tickets.values()], {n: s.values for n, s in complete.items()}, rows

    def restore(
        self, tickets: Iterable[OpenTicket], payloads: Mapping[int, Floats], rows: Mapping[int, Rows]
    ) -> None:
        """Restore what `state` returned, while nothing is staged; payloads are copied."""
        self.tickets, self._turns = {}, []
        for ticket in tickets:
            self.open(replace(ticket))
        for number, values in payloads.items():
            slot = self.begin(number)
            slot.values[...] = values
            slot.rows = [(keys.copy(), each.copy()) for keys, each in rows.get(number, ())]
            self._complete[number] = self._incoming.pop(number)
