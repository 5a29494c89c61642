"""The measures of runs; groups of runs that differ by their seed only; the best group of each policy."""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pslab.runs.folder import Run, RunError
from pslab.runs.labels import run_label

# The losses of this many versions are averaged and compared with a threshold: single batches are noisy.
WINDOW = 10


# The names of all measures. Times in seconds from the first grant; staleness in versions.
MEASURES = (
    "accuracy",
    "held_out_loss",
    "training_loss",
    "versions",
    "samples_per_second",
    "seconds",
    "seconds_per_version",
    "dropped_share",
    "least_share",
    "most_share",
    "mean_staleness",
    "max_staleness",
    "seconds_to_training_loss",
    "seconds_to_accuracy",
)


@dataclass(frozen=True, slots=True)
class Goals:
    """Thresholds whose first crossing is timed; None for no threshold."""

    training_loss: float | None = None
    accuracy: float | None = None


NO_GOALS = Goals()


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, its settings (dotted key -> value), and its numbers.

    `values`: by the names of MEASURES; NaN if not measured. `shares`: worker -> its part of all applied contributions,
    1/n each for n workers if none is favoured.
    """

    run: Run
    seed: int | None
    settings: Mapping[str, Any]
    values: Mapping[str, float]
    shares: Mapping[str, float]


def measured(run: Run, goals: Goals) -> Measured:
    """Measure a run. Raises RunError if its log cannot be read, or is cut off although the run has stopped."""
    run.check_whole()
    summary, settings = run.summary, run.settings()
    counts = summary.contributions
    applied = sum(c.applied for c in counts.values())
    committed = sum(c.committed for c in counts.values())
    dropped = sum(c.dropped for c in counts.values())
    shares = {w: c.applied / applied if applied else math.nan for w, c in counts.items()}
    values = {
        "accuracy": summary.metric("accuracy"),
        "held_out_loss": summary.metric("loss"),
        "training_loss": summary.metric("training_loss"),
        "versions": float(summary.versions),
        "samples_per_second": summary.samples_per_second,
        "seconds": summary.wall_seconds,
        "seconds_per_version": summary.seconds_per_version,
        "dropped_share": dropped / committed if committed else math.nan,
        "least_share": min(shares.values(), default=math.nan),
        "most_share": max(shares.values(), default=math.nan),
        "mean_staleness": summary.mean_staleness,
        "max_staleness": float(max(summary.histogram, default=0)),
    }
    if goals.training_loss is not None or goals.accuracy is not None:
        values |= _times(run, goals)
    return Measured(run, settings.pop("run.seed", None), settings, values, shares)


def _times(run: Run, goals: Goals) -> dict[str, float]:
    """Return the seconds to each goal; NaN if it was not reached, or there is none."""
    begun, loss, accuracy = run.first_grant(), goals.training_loss, goals.accuracy
    recent: deque[float] = deque(maxlen=WINDOW)
    reached: dict[str, float] = {}
    for metric in run.metrics():
        if metric.kind == "train" and math.isfinite(metric.loss):
            recent.append(metric.loss)
            if loss is not None and len(recent) == WINDOW and sum(recent) / WINDOW <= loss:
                reached.setdefault("seconds_to_training_loss", metric.t - begun)
        if accuracy is not None and metric.metrics.get("accuracy", -math.inf) >= accuracy:
            reached.setdefault("seconds_to_accuracy", metric.t - begun)
    return {name: reached.get(name, math.nan) for name in ("seconds_to_training_loss", "seconds_to_accuracy")}


# Settings that do not distinguish experiments. Evaluating takes no virtual time.
_INCIDENTAL = ("run.seed", "run.name", "cluster.idle_timeout", "simulation.evaluate")

# Runs that differ in more settings than this are labelled by their folders' names.
LABEL_SETTINGS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation over the `count` runs that have a number; NaN if too few have it."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with the same settings but for the seed."""

    label: str
    runs: tuple[Measured, ...]

    def spread(self, name: str) -> Spread:
        """Return the spread of one measure."""
        return spread([run.values.get(name, math.nan) for run in self.runs])

    def shares(self) -> dict[str, Spread]:
        """Return the spread of each worker's part of all applied contributions."""
        tables = [run.shares for run in self.runs]
        workers = sorted({worker for table in tables for worker in table})
        return {worker: spread([t.get(worker, math.nan) for t in tables]) for worker in workers}


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.nan
    deviation = statistics.stdev(finite) if len(finite) > 1 else math.nan
    return Spread(mean, deviation, len(finite))


def grouped(runs: Iterable[Run], goals: Goals = NO_GOALS) -> list[RunGroup]:
    """Measure runs. Return one group per setting, in the order in which they first appear.

    A label has the policy and every other setting in which the runs differ, or the folder's name if these are many.
    Raises RunError as `measured` does, and for a run that is there twice.
    """
    every = list(runs)
    twice = [path for path, count in Counter(run.path.resolve() for run in every).items() if count > 1]
    if twice:
        raise RunError(f"{twice[0]}: expected each run once, because its copies would count as further seeds")
    found = [measured(run, goals) for run in every]
    varied = _varied(found)
    members: dict[tuple[str, ...], list[Measured]] = {}
    for run in found:
        members.setdefault(tuple(repr(run.settings.get(key)) for key in varied), []).append(run)
    return [RunGroup(_label(group[0], found, varied), tuple(group)) for group in members.values()]


def varied_settings(groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    """Return key -> different values, for every setting in which the groups differ."""
    runs = [group.runs[0] for group in groups]
    return {
        key: list(
            {repr(run.settings[key]): run.settings[key] for run in runs if key in run.settings}.values()
        )
        for key in _varied(runs)
    }


def _varied(runs: Sequence[Measured]) -> list[str]:
    """Return the keys with more than one value, apart from names and seeds of runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in _INCIDENTAL)
    return [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]


def _label(run: Measured, runs: Sequence[Measured], varied: Sequence[str]) -> str:
    policy = run.settings.get("policy.name")
    same = [other for other in runs if other.settings.get("policy.name") == policy]
    knobs = [key for key in _varied(same) if key.startswith("policy.")]
    # The usual label, unless runs of this policy differ in their knobs: then those are spelled out.
    head = str(policy) if knobs else run_label(run.run.summary)
    others = [key for key in varied if not key.startswith("policy.") and key in run.settings]
    if knobs:
        head += f" ({', '.join(f'{_last(key)}={run.settings.get(key)}' for key in knobs)})"
    if len(others) > LABEL_SETTINGS:
        return f"{head}, {run.run.name}"
    tail = ", ".join(f"{_last(key)}={run.settings[key]}" for key in others)
    return f"{head}, {tail}" if tail else head


def _last(key: str) -> str:
    """Return the last part of a key (``learning_rate``); a worker's number keeps its table (``factors.7``)."""
    rest, _, last = key.rpartition(".")
    return f"{rest.rpartition('.')[2]}.{last}" if last.isdigit() else last


def goal_of(goals: Goals) -> str:
    """Return the measure that decides which group is best. Raises RunError without a goal."""
    if goals.accuracy is None and goals.training_loss is None:
        raise RunError("--best: expected a goal as well: --accuracy X or --training-loss X")
    return "seconds_to_training_loss" if goals.accuracy is None else "seconds_to_accuracy"


def best_of_each(groups: Sequence[RunGroup], goals: Goals) -> list[RunGroup]:
    """Return for each [policy] the group that reaches the goal first on average, the fastest policy first.

    So each policy runs with its best learning rate: one rate for all would be unfair. A group counts only if all of its
    runs reached the goal; if there is none, the one with the most such runs. The goal is the accuracy, else the
    training loss. Raises RunError without a goal.
    """
    measure = goal_of(goals)

    def key(group: RunGroup) -> tuple[float, float]:
        found = group.spread(measure)
        missing = 1 - found.count / len(group.runs)
        return missing, math.inf if math.isnan(found.mean) else found.mean

    by_policy: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_policy.setdefault(_knobs_of(group), []).append(group)
    return sorted((min(members, key=key) for members in by_policy.values()), key=key)


def _knobs_of(group: RunGroup) -> str:
    """Return name and knobs of the policy, without the learning rate of its local rule."""
    knobs = group.runs[0].run.summary.policy
    return repr(sorted((key, value) for key, value in knobs.items() if key != "learning_rate"))
