"""A worker's numbered batches, split into those of one ticket each."""

from collections.abc import Iterable, Iterator
from typing import Any

Numbered = tuple[int, Any]


def by_ticket(batches: Iterable[Numbered], steps: int) -> Iterator["TicketBatches"]:
    """`steps` batches for each ticket; the last one may have fewer.

    Batches are read when they are needed, one ahead: 500 of them need not fit
    into memory. What an interrupted ticket left is passed over when the next
    one is asked for, so that all begin at multiples of `steps` behind the first batch.
    """
    source = ReadAhead(iter(batches))
    while source.following is not None:
        ticket = TicketBatches(source, steps)
        yield ticket
        ticket.pass_over()


class ReadAhead:
    """`following`: the next batch of all, which is read already; None at the end."""

    __slots__ = ("_batches", "following")

    def __init__(self, batches: Iterator[Numbered]) -> None:
        self._batches = batches
        self.following: Numbered | None = next(batches, None)

    def take(self) -> Numbered:
        """Only while there is a `following` one."""
        taken, self.following = self.following, next(self._batches, None)
        assert taken is not None
        return taken


class TicketBatches:
    """The batches of one ticket.

    One of a single batch can be gone through again, when its ticket was
    cancelled; one of several only once: keeping them could fill the memory.
    """

    __slots__ = ("_kept", "_left", "_repeats", "_source", "_steps", "first", "last")

    def __init__(self, source: ReadAhead, steps: int) -> None:
        assert source.following is not None
        self._source = source
        self._repeats = steps == 1
        self._steps = self._left = steps
        self._kept: list[Any] = []
        # The number of the first batch, and of the last that was read.
        self.first = self.last = source.following[0]

    def __iter__(self) -> Iterator[Any]:
        yield from self._kept
        while self._left and self._source.following is not None:
            self._left -= 1
            self.last, batch = self._source.take()
            if self._repeats:
                self._kept.append(batch)
            yield batch

    @property
    def spent(self) -> bool:
        """Batches were read that cannot be read again."""
        return not self._repeats and self._left < self._steps

    @property
    def more(self) -> bool:
        """There is data behind what was read."""
        return self._source.following is not None

    @property
    def followed(self) -> bool:
        """All its batches are read, and there is data behind them: another ticket will be wanted."""
        return not self._left and self.more

    def pass_over(self) -> None:
        """Read what is left, for nothing."""
        if self._left:
            for _ in self:
                pass
