"""Accumulators of the coming update: a running sum, or a list of contributions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend
from psserver.shard import arithmetic
from psserver.shard.aggregators import Aggregator, state_aggregator

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Added:
    """The contents of an accumulator, to be saved.

    `payloads`: float32 of shape (elements,) each, not copied: contributions in the order of the log, or one sum.
    `factors`: of each payload; for a sum, the sum of its factors. `workers`: of each payload, if they matter.
    `pending`: as in `Total`.
    """

    payloads: list[Floats]
    factors: list[float]
    workers: list[str]
    pending: float


@dataclass(frozen=True, slots=True)
class Total:
    """An update's contributions as one payload: ``values * pending``.

    The trainable part is the gradient, before the Apply's scale. The state part is the sum of |factor| * change, and
    `factors` is the sum of the factors' magnitudes.
    """

    values: Floats
    factors: float
    pending: float


class RunningSum:
    """``sum += factor * payload``, in the order of the calls.

    The first payload's buffer becomes the sum and its factor stays pending, so that a lone contribution costs neither a
    copy nor a pass.
    """

    def __init__(self) -> None:
        self._values: Floats | None = None
        self._factors = 0.0
        self._pending = 1.0

    @property
    def empty(self) -> bool:
        return self._values is None

    def add(self, payload: Floats, factor: float, worker: str, backend: Backend = ALONE) -> None:
        """Add a contribution of `worker`. Its buffer may be overwritten or kept (`keeps`)."""
        if self._values is None:
            self._values, self._factors, self._pending = payload, abs(factor), factor
            return
        arithmetic.fold(self._values, self._pending, payload, factor, backend)
        self._pending = 1.0
        self._factors += abs(factor)

    def keeps(self, payload: Floats) -> bool:
        """Return True if the buffer is needed until `clear`."""
        return self._values is payload

    @property
    def payloads(self) -> list[Floats]:
        """The contributions that are kept side by side."""
        return []

    def total(self) -> Total:
        """Return the total of all contributions (at least one), in a buffer that is kept."""
        assert self._values is not None
        return Total(self._values, self._factors, self._pending)

    def clear(self) -> list[Floats]:
        """Start the next update. Return the buffers that were kept."""
        values, self._values = self._values, None
        return [] if values is None else [values]

    def state(self) -> Added:
        """Return everything added since the last `clear`."""
        if self._values is None:
            return Added([], [], [], 1.0)
        return Added([self._values], [self._factors], [], self._pending)

    def check(self, added: Added) -> None:
        """Raise ValueError unless `restore` can take it up."""
        _check(added, workers=False, most=1)

    def restore(self, added: Added) -> None:
        """Restore what `state` returned and `check` has checked, into an empty accumulator; keeps the payloads."""
        if added.payloads:
            (self._values,), (self._factors,), self._pending = added.payloads, added.factors, added.pending


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of an update: its gradient is ``values * factor``, before the Apply's scale."""

    values: Floats
    factor: float
    worker: str


class SideBySide(ABC):
    """Contributions of an update, kept side by side until all are there."""

    # The worker of each contribution is saved, too.
    by_worker: ClassVar[bool]

    def __init__(self, trainable: int) -> None:
        self._end = trainable
        self.shares: list[Share] = []

    @property
    def empty(self) -> bool:
        return not self.shares

    @abstractmethod
    def add(self, payload: Floats, factor: float, worker: str, backend: Backend = ALONE) -> None: ...

    @abstractmethod
    def total(self) -> Total: ...

    def keeps(self, payload: Floats) -> bool:
        return any(share.values is payload for share in self.shares)

    @property
    def payloads(self) -> list[Floats]:
        return [share.values for share in self.shares]

    def clear(self) -> list[Floats]:
        payloads, self.shares = self.payloads, []
        return payloads

    def state(self) -> Added:
        workers = [share.worker for share in self.shares] if self.by_worker else []
        return Added(self.payloads, [share.factor for share in self.shares], workers, 1.0)

    def check(self, added: Added) -> None:
        """Raise ValueError unless `restore` can take it up."""
        _check(added, workers=self.by_worker)

    def restore(self, added: Added) -> None:
        """As `RunningSum.restore`."""
        workers = added.workers if self.by_worker else [""] * len(added.payloads)
        self.shares = [Share(*each) for each in zip(added.payloads, added.factors, workers, strict=True)]


class GradientList(SideBySide):
    """For an aggregator that must see all contributions of an update at once.

    The aggregator reduces the first `trainable` elements of ``factor * payload``; `state_aggregator` reduces the rest,
    the changes of state, which count alike: a choice among scaled changes could lie outside of all of them.
    """

    by_worker = False

    def __init__(self, aggregator: Aggregator, state_aggregator: Aggregator, trainable: int) -> None:
        super().__init__(trainable)
        self._aggregator = aggregator
        self._state_aggregator = state_aggregator

    def add(self, payload: Floats, factor: float, worker: str, backend: Backend = ALONE) -> None:
        with np.errstate(all="ignore"):
            arithmetic.scale(payload[: self._end], factor)
            # -1 undoes the turn that a negative factor has made for a sum (`Updater.add`); 0: no change.
            arithmetic.scale(payload[self._end :], np.sign(factor))
        self.shares.append(Share(payload, factor, worker))

    def total(self) -> Total:
        payloads = self.payloads
        self._aggregator.reduce([payload[: self._end] for payload in payloads])
        if payloads[0].size > self._end:
            self._state_aggregator.reduce([payload[self._end :] for payload in payloads])
        return Total(payloads[0], float(any(share.factor for share in self.shares)), 1.0)


class PerWorker(SideBySide):
    """For an optimizer with slots for each worker."""

    by_worker = True

    def add(self, payload: Floats, factor: float, worker: str, backend: Backend = ALONE) -> None:
        arithmetic.scale(payload[self._end :], factor)
        self.shares.append(Share(payload, factor, worker))

    def total(self) -> Total:
        """Return the total of the state part only; gradients are in `shares`."""
        first, *others = self.shares
        for share in others:
            np.add(first.values[self._end :], share.values[self._end :], out=first.values[self._end :])
        return Total(first.values, sum(abs(share.factor) for share in self.shares), 1.0)


Accumulator = RunningSum | GradientList | PerWorker


def _check(added: Added, *, workers: bool, most: int | None = None) -> None:
    count = len(added.payloads)
    if most is not None and count > most:
        raise ValueError(f"expected one sum, got {count} contributions: another accumulator's")
    if len(added.factors) != count or len(added.workers) != (count if workers else 0):
        raise ValueError(
            f"expected {count} factors and {'as many' if workers else 'no'} workers, "
            f"got {len(added.factors)} and {len(added.workers)}"
        )


def accumulator_for(aggregator: Aggregator | None, *, per_worker: bool, trainable: int) -> Accumulator:
    """Build the accumulator. Raises ValueError if an aggregator would mix gradients that the optimizer needs apart."""
    if aggregator is not None and per_worker:
        raise ValueError("an aggregator and an optimizer with slots for each worker do not go together")
    if per_worker:
        return PerWorker(trainable)
    if aggregator is None:
        return RunningSum()
    return GradientList(aggregator, state_aggregator(aggregator), trainable)
