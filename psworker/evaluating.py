"""Held-out data measured while training, by worker 0, and what follows from it: the best model, a lower learning rate,
an early end."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psworker.engine import Grant
from psworker.errors import SessionError

# Metrics of which less is better, by a part of the name.
_LESS = ("loss", "error", "mse", "mae", "mape", "msle", "perplexity")


class MonitorError(SessionError):
    """What was to be watched is not measured, or what was to follow from it cannot; the text says what can."""


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
        self.check(metrics)
        sense, _, name = self.monitor.rpartition(" ")
        less = sense == "min" or (sense != "max" and any(part in name for part in _LESS))
        value = metrics[name]
        # What is not a number is better than nothing else, nor than nothing.
        better = value < self.best if less else value > self.best
        better = better or (math.isnan(self.best) and not math.isnan(value))
        if better:
            self.best, self.version, self.waited = value, version, 0
        else:
            self.waited += 1
        return better

    def check(self, names: Collection[str]) -> None:
        """Raises MonitorError where the metric is not among those that are measured."""
        name = self.monitor.rpartition(" ")[2]
        if name not in names:
            raise MonitorError(
                f"monitor {name!r}: the evaluation measures {', '.join(names) or 'nothing: is there held-out data?'}"
            )

    @property
    def ends(self) -> str:
        """Why the job is to end; empty while it is not to."""
        if not self.patience or self.waited < self.patience:
            return ""
        if math.isnan(self.best):
            return f"{self.monitor} was not a number in {self.waited} evaluations"
        best = f"{self.best:.6g} at version {self.version}"
        return f"{self.monitor} was not better than {best} in {self.waited} evaluations"


@dataclass(slots=True)
class Plateau:
    """After `patience` evaluations in a row of which none was better than the best: `factor` times the rate, but not
    below `minimum`; then it counts anew. Pure.
    """

    patience: int
    factor: float = 0.1
    minimum: float = 0.0
    waited: int = 0

    def add(self, better: bool, rate: float) -> float | None:
        """After an evaluation of a version that was made at `rate`: the rate from now on; None: that one."""
        self.waited = 0 if better else self.waited + 1
        if self.waited < self.patience:
            return None
        self.waited = 0
        lower = max(rate * self.factor, self.minimum)
        return lower if lower < rate else None


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


Floats = NDArray[np.float32]


class Evaluations:
    """It copies a granted version when an evaluation is due, and measures it when the ticket is committed: nobody waits
    for a ticket meanwhile, but a barrier waits for this worker's next one.

    `report` takes version and metrics; `keep` the weights of the best version. `plateau` says what follows for the
    learning rate, of which `rate` tells the present one. `clock` gives seconds.
    """

    def __init__(
        self,
        every: Every,
        watched: Watched,
        trainer: Any,
        report: Callable[[int, Mapping[str, float]], object],
        keep: Callable[[list[Floats]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        plateau: Plateau | None = None,
        rate: Callable[[], float | None] = lambda: None,
        lowered: Callable[[int, float], object] = lambda version, rate: None,
    ) -> None:
        """`lowered`: told from which version's evaluation on the rate is another."""
        self.every, self.watched = every, watched
        self._trainer, self._report, self._keep, self._clock = trainer, report, keep, clock
        self._plateau, self._rate, self._lowered = plateau, rate, lowered
        self._last = self._now(0, None)
        self._due: tuple[int, list[Floats]] | None = None
        #: The learning rate that the next contribution takes along; None: nothing changes.
        self.learning_rate: float | None = None

    @property
    def pending(self) -> bool:
        """A version is to be measured."""
        return self._due is not None

    def look(self, grant: Grant, weights: Sequence[NDArray[Any]]) -> None:
        """The weights of a grant, which last as long as its ticket."""
        now = self._now(grant.version, grant)
        # The servers may have gone back to a checkpoint.
        self._last = min(self._last, now)
        if now - self._last >= self.every.amount:
            self._last = now
            self._due = grant.version, [np.array(flat, np.float32) for flat in weights]

    def committed(self) -> None:
        """A contribution counts, and the rate that it took along."""
        self.learning_rate = None

    def measure(self) -> None:
        """What is due, if anything is. Raises MonitorError, and whatever the trainer raises."""
        if self._due is None:
            return
        (version, weights), self._due = self._due, None
        better = self.judge(version, weights, self._trainer.evaluate(weights))
        present = self._rate() if self._plateau is not None and not self.watched.ends else None
        if self._plateau is None or present is None:
            return
        self.learning_rate = self._plateau.add(better, present)
        if self.learning_rate is not None:
            self._lowered(version, self.learning_rate)

    def judge(self, version: int, weights: list[Floats], metrics: Mapping[str, float]) -> bool:
        """Metrics of a version, to whom it concerns; whether it is the best so far."""
        better = self.watched.add(version, metrics)
        self._report(version, metrics)
        if better and self._keep is not None:
            self._keep(weights)
        return better

    def went_back(self) -> None:
        """The servers went back to a checkpoint: what this worker was about to say is of another course."""
        self._due = self.learning_rate = None

    def _now(self, version: int, grant: Grant | None) -> float:
        match self.every.unit:
            case "version":
                return version
            case "epoch":
                dealt = grant.part if grant is not None else None
                return dealt.epoch if dealt is not None else int(getattr(self._trainer, "epoch", 0))
            case _:
                return self._clock()
