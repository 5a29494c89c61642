"""The data of a simulated worker (its own batches, or the parts of work units that it is dealt), and its interface to
the cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.network import EventQueue, Network
from pslab.simulator.store import SimulatedStore
from psserver.coordinator.units import WorkTerms
from psworker.engine import Request, UnitPart
from psworker.local import LocalWork, ReadAhead, Trainer
from psworker.work import UnitSource, UnitTrainer, WorkUnits


@dataclass(frozen=True, slots=True)
class DealtPart:
    """The batches of a part. `last`: the number of the last one in its unit; `ends`: the unit ends with it."""

    batches: Sequence[Any]
    last: int
    ends: bool


class Source(Protocol):
    """A reader of the parts that one worker is dealt."""

    def read(self, part: UnitPart) -> DealtPart | None:
        """Return the part; None if the unit has no such part."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """A source without data, where only time matters: units of `batches` batches, `steps` of them in a part."""

    batches: int
    steps: int

    def read(self, part: UnitPart) -> DealtPart | None:
        first = part.part * self.steps
        last = min(first + self.steps, self.batches)
        return DealtPart([None] * (last - first), last - 1, last == self.batches) if first < last else None


@dataclass(frozen=True, slots=True)
class Computed:
    """A source with a trainer's data, read as a real worker reads it."""

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
        """Return the source of a worker's new process."""
        if trainer is None:
            return Counted(self.terms.batches, steps)
        assert isinstance(trainer, UnitTrainer) and trainer.work is not None
        return Computed(UnitSource(trainer.work, trainer.unit_batches(index, self.seed), steps, self.seed))


def dealing(units: int, batches: int, epochs: int, trainer: Trainer | None, seed: int) -> Dealing | None:
    """Return how data is dealt, or None if it is not.

    A trainer's own `work` decides; `units` and `batches` are for simulations of time only.
    """
    if trainer is not None:
        work = trainer.work if isinstance(trainer, UnitTrainer) else None
        return None if work is None else Dealing(_terms(work, epochs), seed)
    return Dealing(WorkTerms(units, epochs, batches or 1), seed) if units else None


def _terms(work: WorkUnits, epochs: int) -> WorkTerms:
    return WorkTerms(work.count, epochs, work.batches_each, str(work), work.apart, work.batches_last)


@dataclass(slots=True)
class TicketWork:
    """The batches of one ticket. `last`: the number of the last one; `more`: more data follows.

    `steps_taken`: their steps were taken before the grant, in `before` seconds. `ahead`: steps that began while the
    contribution before travelled; `going_on`: they are not over yet. `ends`: the last part of a work unit.
    """

    batches: list[Any]
    last: int
    more: bool
    steps_taken: bool = False
    before: float | None = None
    ahead: int = 0
    going_on: bool = False
    ends: bool = False


class WorkerData:
    """The data of one incarnation. `present`: the work of the next ticket; None if nothing is left or dealt yet."""

    def __init__(self, batches: Iterator[tuple[int, Any]], source: Source | None, steps: int) -> None:
        """`batches`: its own data as (number, batch), or `source` if data is dealt; `steps`: batches per ticket."""
        self._batches, self._source, self._steps = ReadAhead(batches), source, steps
        self.present: TicketWork | None = None
        self._following: TicketWork | None = None
        self.next()

    @property
    def dealt(self) -> bool:
        """True if the grant says what to work on."""
        return self._source is not None

    def next(self) -> None:
        """Go on to the work of the next ticket."""
        if not self.dealt:
            self.present, self._following = self.following(), None

    def following(self) -> TicketWork | None:
        """Return the work of the ticket after the present one, if there is any."""
        if self._following is None:
            self._following = self._read()
        return self._following

    def _read(self) -> TicketWork | None:
        """Read the batches of a ticket at once; a real worker reads them one by one during the ticket."""
        data = self._batches
        if data.following is None:
            return None
        last, batch = data.take()
        batches = [batch]
        while len(batches) < self._steps and data.following is not None:
            last, batch = data.take()
            batches.append(batch)
        return TicketWork(batches, last, data.following is not None)

    def read(self, part: UnitPart) -> bool:
        """Read the part of a work unit that a grant names. Return False if it does not exist."""
        assert self._source is not None
        found = self._source.read(part)
        if found is not None:
            self.present = TicketWork(list(found.batches), found.last, more=True, ends=found.ends)
        return found is not None


Floats = NDArray[np.float32]

# The class of the worker, which passes itself to the cluster.
W = TypeVar("W")


class Surroundings(Protocol[W]):
    """The interface of a worker to its cluster.

    `interrupt`: cancelled workers stop at once. `batch_size`: samples of a batch, where only time matters. `batches`:
    from a worker and its first batch to (number, batch) pairs. `dealing`: None if each worker has its own data.
    """

    queue: EventQueue
    network: Network
    store: SimulatedStore
    interrupt: bool
    batch_size: int
    batches: Callable[[W, int], Iterator[tuple[int, Any]]]
    dealing: Dealing | None

    def join(self, worker: W, life: int) -> None: ...

    def receive(self, worker: W, incarnation: int, request: Request) -> None: ...

    def gone(self, worker: W) -> None: ...

    def closed(self, ticket: int) -> bool: ...

    def local_work(self) -> LocalWork: ...

    def initial(self, worker: W) -> list[Floats]: ...

    def evaluate(self, worker: W, version: int) -> None: ...
