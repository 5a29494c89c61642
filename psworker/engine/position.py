"""How far a training loop is in its numbered batches."""

from dataclasses import dataclass


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
