"""Successive halving: run all settings for a short time, keep the better half, double the time (Jamieson and Talwalkar,
"Non-stochastic best arm identification", AISTATS 2016, section 3)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pslab.compare.groups import Goals, Measured, goal_of
from pslab.compare.sweep import SweepError
from pswire.config.experiment import Experiment
from pswire.config.toml import parse_value

Choice = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """The number that grows from rung to rung: `key` from `start` to `end`, which the experiment names."""

    key: str
    start: int
    end: int

    @classmethod
    def parse(cls, text: str, experiment: Experiment) -> "Budget":
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


def better_half(
    settings: Mapping[Choice, Sequence[Measured]], left: Iterable[Choice], goals: Goals
) -> list[Choice]:
    """Return the better half of the settings that are left, rounded up, the best first. Ties stay in their order."""
    ranked = sorted(left, key=lambda choice: score(settings.get(choice, ()), goals))
    return ranked[: math.ceil(len(ranked) / 2)]


def score(runs: Sequence[Measured], goals: Goals) -> tuple[float, ...]:
    """Rank a setting by its seeds; lower is better.

    First the share of runs that failed, or did not reach the goal; then the mean time to the goal, where one is set;
    then the mean accuracy at the end, or the mean loss where no accuracy was measured.
    """
    if not runs:
        return (math.inf,)
    good = [run for run in runs if run.success]
    measures = [goal_of(goals)] if goals.accuracy is not None or goals.loss is not None else []
    arrived = [run for run in good if all(math.isfinite(run.measures.values[name]) for name in measures)]
    times = [_mean(run.measures.values[name] for run in arrived) for name in measures]
    accuracy = _mean(run.measures.values["accuracy"] for run in good)
    last = _mean(run.measures.values["loss"] for run in good) if math.isinf(accuracy) else -accuracy
    return (1 - len(arrived) / len(runs), *times, last)


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; infinity where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.inf
