"""A worker's numbered batches in portions: those of one ticket belong together."""

from collections.abc import Iterable, Iterator
from typing import Any

Numbered = tuple[int, Any]


class Portions:
    """Portion after portion of `steps` batches each; the last one may be shorter.

    Batches are read when they are needed, one ahead: a portion of 500 need not
    fit into memory. What an interrupted ticket left of its portion is passed
    over, so that all portions begin at multiples of `steps` behind the first batch.
    """

    def __init__(self, batches: Iterable[Numbered], steps: int) -> None:
        self._batches = iter(batches)
        self._steps = steps
        self.following: Numbered | None = next(self._batches, None)

    def __iter__(self) -> Iterator["TicketBatches"]:
        while self.following is not None:
            portion = TicketBatches(self, self._steps)
            yield portion
            portion.pass_over()

    def take(self) -> Numbered:
        """The next batch of all. Only while there is a `following` one."""
        assert self.following is not None
        taken, self.following = self.following, next(self._batches, None)
        return taken


class TicketBatches:
    """The batches of one ticket.

    One of a single batch can be gone through again, when its ticket was
    cancelled; one of several only once: keeping them could fill the memory.
    """

    def __init__(self, source: Portions, steps: int) -> None:
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
        """Batches were read that cannot be had again."""
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
        for _ in self:
            pass
