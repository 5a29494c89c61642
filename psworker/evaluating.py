"""Held-out data measured while training, by worker 0, and what follows from it: the best model, an early end."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psworker.engine import Grant
from psworker.errors import SessionError

Floats = NDArray[np.float32]

# Metrics of which less is better, by a part of the name.
_LESS = ("loss", "error", "mse", "mae", "mape", "msle", "perplexity")


class MonitorError(SessionError):
    """What was to be watched is not measured; the text names what is."""


@dataclass(frozen=True, slots=True)
class Every:
    """How often: after so many epochs of worker 0's data, versions, or seconds."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Every:
        """ "1 epoch", "200 versions", "30 s". Raises ValueError."""
        found = re.fullmatch(r"(\d{1,9})\s*(epoch|version|s)s?", text.strip())
        if found is None or int(found[1]) < 1:
            raise ValueError(f'expected "1 epoch", "200 versions" or "30 s", got {text!r}')
        return cls(int(found[1]), found[2])


@dataclass(slots=True)
class Watched:
    """One metric over the evaluations: the best so far, and for how many there was none better. Pure.

    `monitor`: its name, with "min" or "max" before it where the name does not say which is better.
    `patience`: end after so many evaluations in a row that were not better; 0: never.
    """

    monitor: str = "loss"
    patience: int = 0
    best: float = math.nan
    version: int = 0
    waited: int = 0

    def add(self, version: int, metrics: Mapping[str, float]) -> bool:
        """Is this the best so far? Raises MonitorError where the metric is not among them."""
        sense, _, name = self.monitor.rpartition(" ")
        if name not in metrics:
            raise MonitorError(
                f"monitor {name!r}: the evaluation measures {', '.join(metrics) or 'nothing: is there held-out data?'}"
            )
        less = sense == "min" or (sense != "max" and any(part in name for part in _LESS))
        value = metrics[name]
        better = math.isnan(self.best) or (value < self.best if less else value > self.best)
        if better:
            self.best, self.version, self.waited = value, version, 0
        else:
            self.waited += 1
        return better

    @property
    def ends(self) -> str:
        """Why the job is to end; empty while it is not to."""
        if not self.patience or self.waited < self.patience:
            return ""
        best = f"{self.best:.6g} at version {self.version}"
        return f"{self.monitor} was not better than {best} in {self.waited} evaluations"


class Measured(Protocol):
    """What is needed of a trainer."""

    def evaluate(self, flats: list[Floats]) -> dict[str, float]:
        """Metrics at these weights, by name."""
        ...


class Evaluations:
    """Between the steps of one worker. It copies a granted version when an evaluation is due, and measures it when the
    ticket is committed: nobody waits for a ticket meanwhile, but a barrier waits for this worker's next one.

    `report` takes version and metrics; `keep` the weights of the best version. `clock` gives seconds.
    """

    def __init__(
        self,
        every: Every,
        watched: Watched,
        trainer: Any,
        report: Callable[[int, Mapping[str, float]], object],
        keep: Callable[[list[Floats]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.every, self.watched = every, watched
        self._trainer, self._report, self._keep, self._clock = trainer, report, keep, clock
        self._last = self._now(0, None)
        self._due: tuple[int, list[Floats]] | None = None

    @property
    def pending(self) -> bool:
        """A version is to be measured."""
        return self._due is not None

    def look(self, grant: Grant, weights: Sequence[NDArray[Any]]) -> None:
        """The weights of a grant, which last as long as its ticket."""
        now = self._now(grant.version, grant)
        if now - self._last >= self.every.amount:
            self._last = now
            self._due = grant.version, [np.array(flat, np.float32) for flat in weights]

    def measure(self) -> None:
        """What is due, if anything is. Raises MonitorError, and whatever the trainer raises."""
        if self._due is None:
            return
        (version, weights), self._due = self._due, None
        self.judge(version, weights, self._trainer.evaluate(weights))

    def judge(self, version: int, weights: list[Floats], metrics: Mapping[str, float]) -> None:
        """Metrics of a version, to whom it concerns."""
        better = self.watched.add(version, metrics)
        self._report(version, metrics)
        if better and self._keep is not None:
            self._keep(weights)

    def _now(self, version: int, grant: Grant | None) -> float:
        match self.every.unit:
            case "version":
                return version
            case "epoch":
                dealt = grant.part if grant is not None else None
                return dealt.epoch if dealt is not None else int(getattr(self._trainer, "epoch", 0))
            case _:
                return self._clock()
