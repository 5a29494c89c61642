"""Unanswered messages, to be sent again on a new stream; fates of commits; the loop's position in its batches."""

from collections import deque
from dataclasses import dataclass

from pswire.protocol import Abandon, Disposition

KEPT_DISPOSITIONS = 4096


class Unanswered:
    """The unanswered abandons and unread fates of one session. The engine that owns it decides what is sent."""

    def __init__(self) -> None:
        # The tickets of commits without a final fate.
        self.awaited: dict[int, None] = {}
        # Abandons that may not have been received.
        self.abandons: dict[int, Abandon] = {}
        self.dispositions: deque[Disposition] = deque(maxlen=KEPT_DISPOSITIONS)
        # The newest ticket whose commit is known to be dropped; 0 for none.
        self.dropped = 0

    def settle(self, disposition: Disposition) -> None:
        """Note that the coordinator has received the ticket's commit or abandon."""
        self.abandons.pop(disposition.ticket, None)
        if disposition.fate == "dropped":
            self.dropped = disposition.ticket
        if disposition.fate != "pending" and disposition.ticket in self.awaited:
            del self.awaited[disposition.ticket]
            self.dispositions.append(disposition)

    def end(self, reason: str) -> None:
        """Another membership begins: send nothing of this one again, and set open fates to "unknown"."""
        for ticket in self.awaited:
            self.dispositions.append(Disposition(ticket, "unknown", reason=reason))
        self.awaited.clear()
        self.abandons.clear()

    def take_dispositions(self) -> list[Disposition]:
        """Return each final disposition once, at most the newest `KEPT_DISPOSITIONS`."""
        found = list(self.dispositions)
        self.dispositions.clear()
        return found


@dataclass(slots=True)
class Position:
    """`next`: the batch after the last committed one; `before`: the same before the newest commit."""

    next: int = 0
    before: int = 0

    def commit(self, batch: int | None) -> None:
        """Advance past `batch`; None for initial values, which are no batch."""
        self.before = self.next
        if batch is not None:
            self.next = max(self.next, batch + 1)

    def take_back(self) -> None:
        """Take back the newest commit, which was not made."""
        self.next = self.before

    def undone(self, next_batch: int) -> int:
        """Return how many batches were committed from that one on."""
        return max(0, self.next - next_batch)

    def go_back(self, next_batch: int) -> int:
        """Undo the batches from that one on, and return their number."""
        undone = self.undone(next_batch)
        self.next = self.before = self.next - undone
        return undone
