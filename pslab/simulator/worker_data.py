"""What a simulated worker works through: its own data batch by batch, or the parts of work units that it is dealt; and
what it needs of the cluster around it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.network import EventQueue, Network
from pslab.simulator.store import Store
from psserver.coordinator.work.units import WorkTerms
from psworker.engine import Request, UnitPart
from psworker.local import LocalWork, ReadAhead, Trainer
from psworker.work import UnitSource, UnitTrainer, WorkUnits


@dataclass(frozen=True, slots=True)
class DealtPart:
    """The batches of a part, the number of the last one in its unit, and whether the unit ends with it."""

    batches: Sequence[Any]
    last: int
    ends: bool


class Source(Protocol):
    """One worker's way to the batches of what it is dealt."""

    def read(self, part: UnitPart) -> DealtPart | None:
        """None: the unit has no such part."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """Where only time matters: units of so many batches, of which `steps` make a part."""

    batches: int
    steps: int

    def read(self, part: UnitPart) -> DealtPart | None:
        first = part.part * self.steps
        last = min(first + self.steps, self.batches)
        return DealtPart([None] * (last - first), last - 1, last == self.batches) if first < last else None


@dataclass(frozen=True, slots=True)
class Computed:
    """With a trainer: its data, as a real worker reads it."""

    source: UnitSource

    def read(self, part: UnitPart) -> DealtPart | None:
        found = self.source.of(part)
        if found is None:
            return None
        batches = list(found)
        return DealtPart(batches, found.last, self.source.ends())


@dataclass(frozen=True, slots=True)
class Dealing:
    """How a simulated job's data is dealt: `terms` for the coordinator, a source for each worker."""

    terms: WorkTerms
    seed: int

    def source(self, trainer: Trainer | None, index: int, steps: int) -> Source:
        """Of a worker's new process."""
        if trainer is None:
            return Counted(self.terms.batches, steps)
        assert isinstance(trainer, UnitTrainer) and trainer.work is not None
        return Computed(UnitSource(trainer.work, trainer.unit_batches(index, self.seed), steps, self.seed))


def dealing(units: int, batches: int, epochs: int, trainer: Trainer | None, seed: int) -> Dealing | None:
    """`units` and `batches`: where only time matters. With a trainer its own `work` counts. None: nothing is dealt."""
    if trainer is not None:
        work = trainer.work if isinstance(trainer, UnitTrainer) else None
        return None if work is None else Dealing(_terms(work, epochs), seed)
    return Dealing(WorkTerms(units, epochs, batches or 1), seed) if units else None


def _terms(work: WorkUnits, epochs: int) -> WorkTerms:
    return WorkTerms(work.count, epochs, work.batches_each, str(work), work.apart)


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


Floats = NDArray[np.float32]

# The worker itself: what it calls is told who calls.
W = TypeVar("W")


class Surroundings(Protocol[W]):
    """What a worker needs of the cluster around it."""

    queue: EventQueue
    network: Network
    store: Store
    # Cancelled workers stop at once.
    interrupt: bool
    # Samples of a batch, where only time matters.
    batch_size: int
    # From a worker and its first batch to its numbered batches.
    batches: Callable[[W, int], Iterator[tuple[int, Any]]]
    # None where each worker has data of its own.
    dealing: Dealing | None

    def join(self, worker: W, life: int) -> None: ...

    def receive(self, worker: W, incarnation: int, request: Request) -> None:
        """A request of this incarnation arrives at the coordinator."""
        ...

    def gone(self, worker: W) -> None:
        """The process has ended after the stop."""
        ...

    def closed(self, ticket: int) -> bool:
        """The shards take no payload for it any more."""
        ...

    def local_work(self) -> LocalWork: ...

    def initial(self, worker: W) -> list[Floats]:
        """The payload of version 0."""
        ...

    def evaluate(self, worker: W, version: int) -> None: ...
