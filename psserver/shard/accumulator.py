"""Accumulators of the coming update: a running sum, or a list of contributions."""

from dataclasses import dataclass

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
    `factors`: of each payload; for a sum, the sum of its factors. `pending`: as in `Total`.
    """

    payloads: list[Floats]
    factors: list[float]
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

    def add(self, payload: Floats, factor: float, backend: Backend = ALONE) -> None:
        """Add a contribution. Its buffer may be overwritten or kept (`keeps`)."""
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
            return Added([], [], 1.0)
        return Added([self._values], [self._factors], self._pending)

    def check(self, added: Added) -> None:
        """Raise ValueError unless `restore` can take it up."""
        _check(added, most=1)

    def restore(self, added: Added) -> None:
        """Restore what `state` returned and `check` has checked, into an empty accumulator; keeps the payloads."""
        if added.payloads:
            (self._values,), (self._factors,), self._pending = added.payloads, added.factors, added.pending


class GradientList:
    """For an aggregator that must see all contributions of an update at once, kept side by side until then.

    The aggregator reduces the first `trainable` elements of ``factor * payload``; `state_aggregator` reduces the rest,
    the changes of state, which count alike: a choice among scaled changes could lie outside of all of them.
    """

    def __init__(self, aggregator: Aggregator, state_aggregator: Aggregator, trainable: int) -> None:
        self._aggregator = aggregator
        self._state_aggregator = state_aggregator
        self._end = trainable
        self._factors: list[float] = []
        self.payloads: list[Floats] = []

    @property
    def empty(self) -> bool:
        return not self.payloads

    def add(self, payload: Floats, factor: float, backend: Backend = ALONE) -> None:
        """As `RunningSum.add`."""
        with np.errstate(all="ignore"):
            arithmetic.scale(payload[: self._end], factor)
            # -1 undoes the turn that a negative factor has made for a sum (`Updater.add`); 0: no change.
            arithmetic.scale(payload[self._end :], np.sign(factor))
        self.payloads.append(payload)
        self._factors.append(factor)

    def keeps(self, payload: Floats) -> bool:
        """As `RunningSum.keeps`."""
        return any(each is payload for each in self.payloads)

    def total(self) -> Total:
        """As `RunningSum.total`."""
        payloads = self.payloads
        self._aggregator.reduce([payload[: self._end] for payload in payloads])
        if payloads[0].size > self._end:
            self._state_aggregator.reduce([payload[self._end :] for payload in payloads])
        return Total(payloads[0], float(any(self._factors)), 1.0)

    def clear(self) -> list[Floats]:
        """As `RunningSum.clear`."""
        payloads, self.payloads, self._factors = self.payloads, [], []
        return payloads

    def state(self) -> Added:
        """As `RunningSum.state`."""
        return Added(list(self.payloads), list(self._factors), 1.0)

    def check(self, added: Added) -> None:
        """As `RunningSum.check`."""
        _check(added)

    def restore(self, added: Added) -> None:
        """As `RunningSum.restore`."""
        self.payloads, self._factors = list(added.payloads), list(added.factors)


Accumulator = RunningSum | GradientList


def _check(added: Added, most: int | None = None) -> None:
    count = len(added.payloads)
    if most is not None and count > most:
        raise ValueError(f"expected one sum, got {count} contributions: another accumulator's")
    if len(added.factors) != count:
        raise ValueError(f"expected {count} factors, got {len(added.factors)}")


def accumulator_for(aggregator: Aggregator | None, trainable: int) -> Accumulator:
    """Build the accumulator."""
    if aggregator is None:
        return RunningSum()
    return GradientList(aggregator, state_aggregator(aggregator), trainable)
