"""The tail of a replicated log: the items that some copy may still need."""

from typing import NamedTuple

from psserver.replication.configuration import ReplicationError
from psserver.replication.messages import Item


class Log(NamedTuple):
    """Items from number `first` on; the earlier ones are executed by all copies in sync, and forgotten.

    Always first <= executed <= stable <= end. What is stable is never taken back.
    """

    first: int = 0
    tail: tuple[Item, ...] = ()
    stable: int = 0
    executed: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.tail)

    def since(self, start: int) -> tuple[Item, ...]:
        """Return the items from number `start` on, which must not be forgotten."""
        if start < self.first:
            raise ReplicationError(f"expected a start from {self.first} on, got {start}: a copy is needed")
        return self.tail[start - self.first :]

    def take(self, start: int, items: tuple[Item, ...]) -> "Log":
        """Append those of the items that are new. `start` is at most `end`: there are no gaps."""
        new = items[self.end - start :]
        return Log(self.first, self.tail + new, self.stable, self.executed) if new else self

    def become(self, first: int, items: tuple[Item, ...]) -> "Log":
        """Replace the items from number `first` on, which is at most `stable`, by a candidate's.

        Raises ReplicationError if the other log has less than what is stable here.
        """
        end = first + len(items)
        if end < self.stable:
            raise ReplicationError(
                f"expected a log of at least {self.stable} items, which are stable, got {end}"
            )
        if first >= self.first:
            return self._replace(tail=self.tail[: first - self.first] + items)
        return self._replace(tail=items[self.first - first :])

    def stabilised(self, stable: int) -> "Log":
        """Return the log in which the first `stable` items that it has are stable."""
        stable = max(self.stable, min(stable, self.end))
        return self if stable == self.stable else Log(self.first, self.tail, stable, self.executed)

    def without_unstable(self) -> "Log":
        return self._replace(tail=self.tail[: self.stable - self.first])

    def trimmed(self, keep: int) -> "Log":
        """Forget executed items below number `keep`."""
        first = max(self.first, min(keep, self.executed))
        if first == self.first:
            return self
        return Log(first, self.tail[first - self.first :], self.stable, self.executed)
