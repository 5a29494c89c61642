"""Runs that differ by seed only, as one group with means and spreads; the best group of each policy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pslab.compare.measure import Goals, Measured
from pslab.runs.folder import RunError
from pslab.runs.table import policy_label

# Settings that say how a run was carried out, not what was run.
_INCIDENTAL = ("run.seed", "run.name", "cluster.idle_timeout")

# Runs that differ in more settings than this are labelled by their folders' names.
MOST = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation over `count` runs that have the number. NaN: too few have it."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    label: str
    runs: tuple[Measured, ...]

    def spread(self, name: str) -> Spread:
        """Of one measure."""
        return spread([run.measures.values.get(name, math.nan) for run in self.runs])

    def shares(self) -> dict[str, Spread]:
        """Of each worker's part of what was applied."""
        return self._by_worker([run.measures.shares for run in self.runs])

    def acceptance(self) -> dict[str, Spread]:
        """Of the part of each worker's commits that was applied."""
        return self._by_worker([run.measures.acceptance for run in self.runs])

    def _by_worker(self, tables: Sequence[Any]) -> dict[str, Spread]:
        workers = sorted({worker for table in tables for worker in table})
        return {worker: spread([t.get(worker, math.nan) for t in tables]) for worker in workers}


def spread(values: Sequence[float]) -> Spread:
    """Of those that are finite."""
    finite = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    deviation = statistics.stdev(finite) if len(finite) > 1 else math.nan
    return Spread(mean, deviation, len(finite))


def grouped(runs: Sequence[Measured]) -> list[Group]:
    """One group per setting, in the order in which they first appear.

    A label is the policy, and every other setting in which the runs differ (or a folder where they are many).
    """
    varied = _varied(runs)
    members: dict[tuple[str, ...], list[Measured]] = {}
    for run in runs:
        members.setdefault(tuple(repr(run.settings.get(key)) for key in varied), []).append(run)
    return [Group(_label(group[0], runs, varied), tuple(group)) for group in members.values()]


def varied_settings(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Key -> its different values, of every setting in which the groups differ; absent where a run has none."""
    runs = [group.runs[0] for group in groups]
    return {
        key: list(
            {repr(run.settings[key]): run.settings[key] for run in runs if key in run.settings}.values()
        )
        for key in _varied(runs)
    }


def _varied(runs: Sequence[Measured]) -> list[str]:
    """Keys with more than one value. The names of runs and seeds are none."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in _INCIDENTAL)
    return [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]


def _label(run: Measured, runs: Sequence[Measured], varied: Sequence[str]) -> str:
    policy = run.settings.get("policy.name")
    same = [other for other in runs if other.settings.get("policy.name") == policy]
    knobs = [key for key in _varied(same) if key.startswith("policy.")]
    # The usual label where it tells the knobs that differ; else they are spelled out.
    head = str(policy) if knobs else policy_label(run.run.summary.policy)
    others = [key for key in varied if not key.startswith("policy.") and key in run.settings]
    if knobs:
        head += f" ({', '.join(f'{_last(key)}={run.settings.get(key)}' for key in knobs)})"
    if len(others) > MOST:
        return f"{head}, {run.run.name}"
    tail = ", ".join(f"{_last(key)}={run.settings[key]}" for key in others)
    return f"{head}, {tail}" if tail else head


def _last(key: str) -> str:
    """``learning_rate``; a worker's number keeps its table: ``factors.7``."""
    rest, _, last = key.rpartition(".")
    return f"{rest.rpartition('.')[2]}.{last}" if last.isdigit() else last


def goal_of(goals: Goals) -> str:
    """The measure that decides who is best. Raises RunError when there is no goal."""
    if goals.accuracy is None and goals.loss is None:
        raise RunError("--best: expected a goal, too: --accuracy X or --loss X")
    return "seconds_to_loss" if goals.accuracy is None else "seconds_to_accuracy"


def best_of_each(groups: Sequence[Group], goals: Goals) -> list[Group]:
    """Of the groups with the same [policy] the one that is first at the goal on average, fastest policy first:
    comparing all policies with one learning rate would be no fair race.

    A group counts only if all of its runs arrived; where none did, the one of which most did. The time is that to
    the accuracy, else to the loss. Raises RunError when there is no goal.
    """
    measure = goal_of(goals)

    def key(group: Group) -> tuple[float, float]:
        found = group.spread(measure)
        missing = 1 - found.count / len(group.runs)
        return missing, math.inf if math.isnan(found.mean) else found.mean

    by_policy: dict[str, list[Group]] = {}
    for group in groups:
        by_policy.setdefault(_knobs_of(group), []).append(group)
    return sorted((min(members, key=key) for members in by_policy.values()), key=key)


def _knobs_of(group: Group) -> str:
    """Its name and knobs. Where workers take steps of their own, their learning rate is a knob: it is a setting."""
    knobs = group.runs[0].run.summary.policy
    return repr(sorted((key, value) for key, value in knobs.items() if key != "learning_rate"))
