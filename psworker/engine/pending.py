"""What was sent and is not answered, to be sent again on a new stream; what became of commits; how far the training
loop is in its batches."""

from collections import deque
from dataclasses import dataclass

from pswire.protocol import Abandon, Commit, Disposition, Request

KEPT_DISPOSITIONS = 4096


class Pending:
    """Of one session. The engine that owns it decides what is sent."""

    def __init__(self) -> None:
        # Commits without an answer, and the tickets of commits whose fate is not known.
        self.commits: dict[int, Commit] = {}
        self.awaited: dict[int, None] = {}
        # Abandoned, and not yet known to have been received.
        self.abandons: dict[int, Abandon] = {}
        self.dispositions: deque[Disposition] = deque(maxlen=KEPT_DISPOSITIONS)
        # The last ticket of which it was said that its commit is dropped; 0: of none.
        self.dropped = 0

    def commit(self, commit: Commit) -> None:
        """It is sent, or an exchange carries it."""
        self.commits[commit.ticket] = commit
        self.awaited[commit.ticket] = None

    def withdraw(self, ticket: int) -> None:
        """The ticket's commit was not made: it has no fate."""
        self.commits.pop(ticket, None)
        self.awaited.pop(ticket, None)

    def settle(self, disposition: Disposition) -> None:
        """The coordinator has received the ticket's commit or abandon."""
        self.commits.pop(disposition.ticket, None)
        self.abandons.pop(disposition.ticket, None)
        if disposition.fate == "dropped":
            self.dropped = disposition.ticket
        if disposition.fate != "pending" and disposition.ticket in self.awaited:
            del self.awaited[disposition.ticket]
            self.dispositions.append(disposition)

    def cancelled(self, ticket: int) -> None:
        """Its commit was not sent: it was cancelled before."""
        self.dispositions.append(Disposition(ticket, "dropped", reason="cancelled"))

    def end(self, reason: str) -> None:
        """Another membership begins: nothing of this one is sent again, and commits without a fate have an unknown
        one."""
        for ticket in self.awaited:
            self.dispositions.append(Disposition(ticket, "unknown", reason=reason))
        self.commits.clear()
        self.awaited.clear()
        self.abandons.clear()

    def owed(self, carried: int | None) -> list[Request]:
        """What may not have been received. `carried`: the ticket whose commit an exchange carries, if any."""
        requests: list[Request] = list(self.abandons.values())
        return requests + [commit for ticket, commit in self.commits.items() if ticket != carried]

    def take_dispositions(self) -> list[Disposition]:
        """Each final one once, the newest `KEPT_DISPOSITIONS`."""
        found = list(self.dispositions)
        self.dispositions.clear()
        return found


@dataclass(slots=True)
class Position:
    """`next`: behind the last batch that was committed; `before`: as it was before the newest commit."""

    next: int = 0
    before: int = 0

    def commit(self, batch: int | None) -> None:
        """`batch`: None where it is none, but initial values."""
        self.before = self.next
        if batch is not None:
            self.next = max(self.next, batch + 1)

    def rollback(self) -> None:
        """The newest commit was not made."""
        self.next = self.before

    def undone(self, next_batch: int) -> int:
        """How many batches were committed from that one on."""
        return max(0, self.next - next_batch)

    def go_back(self, next_batch: int) -> int:
        """Those are not. Returns how many."""
        undone = self.undone(next_batch)
        self.next = self.before = self.next - undone
        return undone
