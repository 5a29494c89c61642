"""What a simulated worker works through: its own data batch by batch, or the parts of work units that it is dealt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pslab.simulator.workers.dealt import Source
from psworker.engine import UnitPart
from psworker.local import ReadAhead


@dataclass(slots=True)
class TicketWork:
    """The batches of one ticket. `last`: the number of the last; `more`: there is data behind them."""

    batches: list[Any]
    last: int
    more: bool
    # Their steps were taken before the grant, in `before` seconds.
    steps_taken: bool = False
    before: float | None = None
    # It is the last part of a work unit.
    ends: bool = False


class WorkerData:
    """Of one incarnation. `present`: what the next ticket is for; None where nothing is left, or is to be dealt."""

    def __init__(self, batches: Iterator[tuple[int, Any]], source: Source | None, steps: int) -> None:
        """`batches`: by number, where it has data of its own; `source`: where its data is dealt; `steps`: batches of
        a ticket."""
        self._batches, self._source, self._steps = ReadAhead(batches), source, steps
        self.present: TicketWork | None = None
        self.next()

    @property
    def dealt(self) -> bool:
        """What to work on comes with the grant."""
        return self._source is not None

    def next(self) -> None:
        """A real worker reads batch by batch, during the ticket; here they may as well be read at once."""
        data = self._batches
        if self.dealt:
            return
        if data.following is None:
            self.present = None
            return
        last, batch = data.take()
        batches = [batch]
        while len(batches) < self._steps and data.following is not None:
            last, batch = data.take()
            batches.append(batch)
        self.present = TicketWork(batches, last, data.following is not None)

    def read(self, part: UnitPart) -> bool:
        """The part of a work unit that a grant names; False: there is none."""
        assert self._source is not None
        found = self._source.read(part)
        if found is not None:
            self.present = TicketWork(list(found.batches), found.last, more=True, ends=found.ends)
        return found is not None
