"""Evaluations on held-out data while worker 0 trains, and their effects: the best model, a lower learning rate, an
early end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire import running
from pswire.config.units import Interval
from psworker.engine import Grant
from psworker.errors import SessionError
from psworker.local import ReadRows, evaluated

# Parts of the names of metrics of which less is better.
_LESS = ("loss", "error", "mse", "mae", "mape", "msle", "perplexity")


class MonitorError(SessionError):
    """The metric to watch is not measured, or its effect is impossible; the text says what is possible."""


@dataclass(slots=True)
class Watched:
    """One metric over the evaluations: the best value so far, and the number of evaluations since. Pure.

    `monitor`: its name, after "min" or "max" if the name does not show which is better. `patience`: end the job after
    this many evaluations in a row that were not better; 0: never.
    """

    monitor: str = "loss"
    patience: int = 0
    best: float = math.nan
    version: int = 0
    waited: int = 0

    def add(self, version: int, metrics: Mapping[str, float]) -> bool:
        """Return whether this is the best value so far. Raises MonitorError if the metric is missing."""
        self.check(metrics)
        sense, _, name = self.monitor.rpartition(" ")
        less = sense == "min" or (sense != "max" and any(part in name for part in _LESS))
        value = metrics[name]
        # A NaN is never the best value.
        better = value < self.best if less else value > self.best
        better = better or (math.isnan(self.best) and not math.isnan(value))
        if better:
            self.best, self.version, self.waited = value, version, 0
        else:
            self.waited += 1
        return better

    def check(self, names: Collection[str]) -> None:
        """Raise MonitorError if the metric is not among those that are measured."""
        name = self.monitor.rpartition(" ")[2]
        if name not in names:
            raise MonitorError(
                f"monitor {name!r}: the evaluation measures {', '.join(names) or 'nothing: is there held-out data?'}"
            )

    @property
    def ends(self) -> str:
        """Why the job is to end; empty if it is not."""
        if not self.patience or self.waited < self.patience:
            return ""
        if math.isnan(self.best):
            return f"{self.monitor} was not a number in {self.waited} evaluations"
        best = f"{self.best:.6g} at version {self.version}"
        return f"{self.monitor} was not better than {best} in {self.waited} evaluations"


@dataclass(slots=True)
class Plateau:
    """Multiplies the learning rate by `factor`, down to `minimum`, after `patience` evaluations in a row without a
    better value; then counts anew. Pure.
    """

    patience: int
    factor: float = 0.1
    minimum: float = 0.0
    waited: int = 0

    def add(self, better: bool, rate: float) -> float | None:
        """Return the rate after an evaluation of a version made at `rate`; None if it does not change."""
        self.waited = 0 if better else self.waited + 1
        if self.waited < self.patience:
            return None
        self.waited = 0
        lower = max(rate * self.factor, self.minimum)
        return lower if lower < rate else None


Floats = NDArray[np.float32]


class Evaluations:
    """Copies a granted version when an evaluation is due, and measures it after the ticket's commit.

    No ticket is held meanwhile, but a barrier waits for this worker's next one. `report` takes version and metrics,
    `keep` the weights of the best version. `plateau` changes the learning rate, whose present value `rate` returns.
    `clock` returns seconds.
    """

    def __init__(
        self,
        every: Interval,
        watched: Watched,
        trainer: Any,
        report: Callable[[int, Mapping[str, float]], object],
        keep: Callable[[list[Floats]], object] | None = None,
        clock: Callable[[], float] = running.system,
        plateau: Plateau | None = None,
        rate: Callable[[], float | None] = lambda: None,
        lowered: Callable[[int, float], object] = lambda version, rate: None,
    ) -> None:
        """`lowered`: called with the evaluated version and the new learning rate."""
        self.every, self.watched = every, watched
        self._trainer, self._report, self._keep, self._clock = trainer, report, keep, clock
        self._plateau, self._rate, self._lowered = plateau, rate, lowered
        # Reads rows of tables, at the newest version.
        self.read: ReadRows = lambda keys: {}
        self._last = self._now(0, None)
        self._due: tuple[int, list[Floats]] | None = None
        #: The learning rate for contributions to set; None: no change.
        self.learning_rate: float | None = None

    @property
    def pending(self) -> bool:
        """Whether a version waits to be measured."""
        return self._due is not None

    def take(self, grant: Grant, weights: Sequence[NDArray[Any]]) -> None:
        """Copy the weights of a grant if an evaluation is due. They are valid as long as the ticket."""
        now = self._now(grant.version, grant)
        # The servers may have gone back to a checkpoint.
        self._last = min(self._last, now)
        if now - self._last >= self.every.amount:
            self._last = now
            self._due = grant.version, [np.array(flat, np.float32) for flat in weights]

    def measure(self) -> None:
        """Measure the version that is due, if any. Raises MonitorError, and whatever the trainer raises."""
        if self._due is None:
            return
        (version, weights), self._due = self._due, None
        better = self.judge(version, weights, evaluated(self._trainer, weights, self.read))
        present = self._rate() if self._plateau is not None and not self.watched.ends else None
        if self._plateau is None or present is None:
            return
        self.learning_rate = self._plateau.add(better, present)
        if self.learning_rate is not None:
            self._lowered(version, self.learning_rate)

    def judge(self, version: int, weights: list[Floats], metrics: Mapping[str, float]) -> bool:
        """Report the metrics of a version, and return whether it is the best so far."""
        better = self.watched.add(version, metrics)
        self._report(version, metrics)
        if better and self._keep is not None:
            self._keep(weights)
        return better

    def rolled_back(self) -> None:
        """Drop what belongs to later versions than the checkpoint to which the servers went back."""
        self._due = self.learning_rate = None

    def _now(self, version: int, grant: Grant | None) -> float:
        match self.every.unit:
            case "versions":
                return version
            case "epochs":
                dealt = grant.part if grant is not None else None
                return dealt.epoch if dealt is not None else int(getattr(self._trainer, "epoch", 0))
            case _:
                return self._clock()
