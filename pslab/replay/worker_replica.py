"""A replica of one worker: computes what the worker computed, from the same weights, batch and random numbers."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from psworker.engine import UnitPart
from psworker.local import Gradient, LocalWork, Result, Trainer
from psworker.work import UnitSource, UnitTrainer

Floats = NDArray[np.float32]


class DataError(ValueError):
    """The job's data is not that of the run."""


@runtime_checkable
class Remembering(Protocol):
    """A trainer with state that does not travel: counters, random generators."""

    def memory(self) -> list[NDArray[Any]]: ...

    def remember(self, values: list[NDArray[Any]]) -> None: ...


@dataclass(frozen=True, slots=True)
class DataPart:
    """The part of the data that a worker has."""

    rank: int
    workers: int
    seed: int
    epochs: int


@dataclass(slots=True)
class WorkerReplica:
    """One incarnation of a worker. All replicas of a run share one trainer; each keeps its own memory of it.

    `skip`: the first batch that no earlier incarnation has committed. `fresh`: the trainer's memory in a new process.
    `work`: the local rule. `uncertain`: tickets since the last commit that were cancelled or abandoned, for which the
    worker may have computed or not.
    """

    worker: str
    part: DataPart
    trainer: Trainer
    fresh: list[NDArray[Any]]
    skip: int
    work: LocalWork
    uncertain: int = 0
    _memory: list[NDArray[Any]] = field(default_factory=list)
    _batches: Iterator[tuple[int, Any]] | None = None
    _ahead: tuple[int, Any] | None = None
    _units: UnitSource | None = None

    def compute(
        self,
        weights: list[Floats],
        place: int | UnitPart,
        fits: Callable[[Result], bool],
        gradient: Gradient | None = None,
        version: int = 0,
    ) -> Result:
        """Compute a contribution from `weights`, which are `version`. Raises DataError if there is no such batch.

        `gradient`: None for the trainer's step. `place`: the number of its last batch, or its part of a work unit. A
        model that draws random numbers depends on how often its worker has drawn before. If that is uncertain, the
        count whose result `fits` is taken, else the lowest.
        """
        batches = self._batches_of(place) if isinstance(place, int) else self._batches_dealt(place)
        before, step = self._memory, partial(self._step, gradient or self.trainer.step)
        found: tuple[Result, list[NDArray[Any]], LocalWork] | None = None
        for spare in range(self.uncertain * self.work.rule.steps + 1 if before else 1):
            self._memory, work = before, copy(self.work)
            for _ in range(spare):
                step(weights, batches[0])
            result = work.payload(weights, step, batches, version)
            if found is None or fits(result):
                found = result, self._memory, work
            if fits(result):
                break
        assert found is not None
        self.uncertain = 0
        result, self._memory, self.work = found
        self.work.keep()
        return result

    def _step(self, gradient: Gradient, weights: list[Floats], batch: Any) -> Result:
        if isinstance(self.trainer, Remembering) and self._memory:
            self.trainer.remember(self._memory)
        result = gradient(weights, batch)
        if self._memory:
            self._memory = memory_of(self.trainer)
        return result

    def _batches_of(self, number: int) -> list[Any]:
        """Return the batches of the ticket whose last one is `number`: tickets begin at multiples of `steps`."""
        first = number - max(0, number - self.skip) % self.work.rule.steps
        return [self._batch(each) for each in range(first, number + 1)]

    def _batches_dealt(self, part: UnitPart) -> list[Any]:
        if self._units is None:
            trainer: Any = self.trainer
            if not (isinstance(trainer, UnitTrainer) and trainer.work is not None):
                raise DataError("the log deals work units, but the job declares none")
            self._remember_fresh()
            opened = trainer.unit_batches(self.part.rank, self.part.seed)
            self._memory = memory_of(self.trainer)
            self._units = UnitSource(trainer.work, opened, self.work.rule.steps, self.part.seed)
        found = self._units.of(part)
        if found is None:
            raise DataError(
                f"the job's data has no part {part.part} in unit {part.unit} of epoch {part.epoch}, which "
                f"{self.worker} has committed"
            )
        return list(found)

    def _batch(self, number: int) -> Any:
        if self._batches is None:
            self._batches = self._begin()
        while self._ahead is None or self._ahead[0] < number:
            self._ahead = next(self._batches, None)
            if self._ahead is None:
                raise DataError(
                    f"the job's data ends before batch {number}, which {self.worker} has committed"
                )
        if self._ahead[0] != number:
            raise DataError(f"{self.worker} committed batch {number} after batch {self._ahead[0]}")
        return self._ahead[1]

    def _begin(self) -> Iterator[tuple[int, Any]]:
        self._remember_fresh()
        part = self.part
        batches = self.trainer.batches(part.rank, part.workers, part.seed, part.epochs, self.skip)
        # The call has set the worker's own random stream.
        self._memory = memory_of(self.trainer)
        return batches

    def _remember_fresh(self) -> None:
        if isinstance(self.trainer, Remembering):
            self.trainer.remember(self.fresh)


def memory_of(trainer: Trainer) -> list[NDArray[Any]]:
    """Return the trainer's memory; empty if its step depends on weights and batch only."""
    return trainer.memory() if isinstance(trainer, Remembering) else []
