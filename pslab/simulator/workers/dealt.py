"""Work units in a simulated cluster: from a grant's part to what its worker works through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psserver.coordinator.work.units import WorkTerms
from psworker.engine import UnitPart
from psworker.local import Trainer
from psworker.work import WorkUnits
from psworker.work.source import UnitSource, UnitTrainer


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
