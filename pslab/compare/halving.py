"""Successive halving: try all settings a little, keep the better half, and try that more (Jamieson and Talwalkar,
"Non-stochastic best arm identification", AISTATS 2016, section 3)."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pslab.compare.groups import Goals, Measured, goal_of
from pslab.compare.sweep import SweepError
from pslab.experiment import Experiment
from pswire.config.toml import parse_value

Setting = TypeVar("Setting")
Rung = TypeVar("Rung")


@dataclass(frozen=True, slots=True)
class RungBudget:
    """The number that grows from rung to rung: `key` from `start` to `end`, which the experiment names."""

    key: str
    start: int
    end: int

    @classmethod
    def parse(cls, text: str, experiment: Experiment) -> "RungBudget":
        """Read ``job.epochs=1``; `experiment` has the end. Raises SweepError."""
        key, equals, value = text.partition("=")
        section, _, name = key.strip().partition(".")
        start = parse_value(value) if equals else None
        if not isinstance(start, int) or isinstance(start, bool) or start < 1:
            raise SweepError(f"--halve: expected section.key=NUMBER (job.epochs=1, say), got {text!r}")
        end = getattr(getattr(experiment, section, None), name, None)
        if not isinstance(end, int) or isinstance(end, bool):
            raise SweepError(f"--halve {text}: expected {key} in the experiment: the number of the last rung")
        if not start < end:
            raise SweepError(f"--halve {text}: expected a start below the experiment's {key} = {end}")
        return cls(key.strip(), start, end)

    def settings(self) -> list[str]:
        """Return the rungs as overrides: the start, doubled while that stays below the end, and the end."""
        found, value = [], self.start
        while value < self.end:
            found.append(f"{self.key}={value}")
            value *= 2
        return [*found, f"{self.key}={self.end}"]


def halving(
    settings: Iterable[Setting],
    rungs: Iterable[Rung],
    rank: Callable[[Setting], Any],
    least: int = 1,
) -> Iterator[tuple[Rung, list[Setting]]]:
    """Yield each rung with the settings that are left for it. Whoever runs them may stop at any time.

    Between two rungs the better half stays, rounded up, but at least `least`. The lower the `rank`, the better; ties
    stay in their order.
    """
    left = list(settings)
    for rung in rungs:
        yield rung, left
        left = sorted(left, key=rank)[: max(least, math.ceil(len(left) / 2))]


@dataclass(frozen=True, slots=True)
class RungResult:
    """What one run gave. `seconds`: to the goal, infinite if it was missed; `cost`: at the end, infinite if unknown."""

    seconds: float
    cost: float


def result_of(run: Measured, goals: Goals) -> RungResult:
    """Without a goal all runs reach it at once, unless they fail. The cost is -accuracy, else a loss."""
    if not run.run.summary.success:
        return RungResult(math.inf, math.inf)
    values, goal = run.values, goals.accuracy is not None or goals.training_loss is not None
    seconds = values[goal_of(goals)] if goal else 0.0
    costs = (-values["accuracy"], values["held_out_loss"], values["training_loss"])
    cost = next((cost for cost in costs if math.isfinite(cost)), math.inf)
    return RungResult(seconds if math.isfinite(seconds) else math.inf, cost)


def score(results: Collection[RungResult]) -> tuple[float, float, float]:
    """Rank a setting by its runs; lower is better: the share that missed the goal, the mean time to it, the mean cost.

    Means are of the runs that have the number.
    """
    missed = sum(math.isinf(each.seconds) for each in results)
    share = missed / len(results) if results else math.inf
    return share, _mean(each.seconds for each in results), _mean(each.cost for each in results)


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; infinity where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.inf
