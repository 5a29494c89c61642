"""One metric over the evaluations: which was the best, and when there was none better for too long."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
