"""The numbers of one run that a comparison is made of."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pslab.runs.folder import Run, Summary

# So many versions' losses are averaged before they are held against a threshold: single batches are noisy.
WINDOW = 10


# The names of all measures. Times in seconds from the first grant; staleness in versions.
MEASURES = (
    "accuracy",
    "loss",
    "versions",
    "samples_per_second",
    "seconds",
    "seconds_per_version",
    "dropped_share",
    "least_share",
    "most_share",
    "mean_staleness",
    "max_staleness",
    "seconds_to_loss",
    "seconds_to_accuracy",
)


@dataclass(frozen=True, slots=True)
class Goals:
    """Thresholds whose first crossing is timed; None: not asked for."""

    loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """NaN: not measured. Times in seconds from the first grant; staleness in versions.

    `shares`: worker -> its part of all applied contributions, of which n
    workers have 1/n each when nobody is favoured. `acceptance`: worker -> the
    part of its own committed contributions that was applied.
    """

    values: Mapping[str, float]
    shares: Mapping[str, float]
    acceptance: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, what it was made with, and its measures. `settings`: dotted key -> value."""

    run: Run
    seed: int | None
    settings: Mapping[str, Any]
    measures: Measures
    success: bool


def measured(run: Run, goals: Goals) -> Measured:
    """Raises RunError for a run whose log cannot be read, or of one that has stopped and whose log is cut off."""
    run.check_whole()
    summary, settings = run.summary, _settings(run)
    return Measured(
        run, settings.pop("run.seed", None), settings, _measures(run, summary, goals), summary.success
    )


def _settings(run: Run) -> dict[str, Any]:
    """What the run was made with. The policy's and the optimizer's knobs are complete, defaults included."""
    summary = run.summary
    settings: dict[str, Any] = {"cluster.servers": summary.servers, "cluster.workers": summary.workers}
    if (run.path / "experiment.toml").is_file():
        for section, table in run.experiment.model_dump().items():
            settings |= _flat(section, table)
    for section, knobs in (("policy", summary.policy), ("optimizer", summary.optimizer)):
        settings = {k: v for k, v in settings.items() if not k.startswith(f"{section}.")}
        settings |= _flat(section, knobs)
    settings.pop("run.name", None)
    return settings


def _flat(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: leaf for name, inner in value.items() for key, leaf in _flat(f"{path}.{name}", inner).items()
    }


def _measures(run: Run, summary: Summary, goals: Goals) -> Measures:
    counts = summary.contributions
    applied = sum(c.applied for c in counts.values())
    committed = sum(c.committed for c in counts.values())
    dropped = sum(c.dropped for c in counts.values())
    shares = {w: c.applied / applied if applied else math.nan for w, c in counts.items()}
    values = {
        "accuracy": summary.metric("accuracy"),
        "loss": summary.metric("loss"),
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
    if goals.loss is not None or goals.accuracy is not None:
        values |= _times(run, goals)
    acceptance = {w: c.applied / c.committed if c.committed else math.nan for w, c in counts.items()}
    return Measures(values, shares, acceptance)


def _times(run: Run, goals: Goals) -> dict[str, float]:
    """Seconds to each goal; NaN when it was not reached, or not asked for."""
    begun = run.first_grant()
    recent: deque[float] = deque(maxlen=WINDOW)
    found = {"seconds_to_loss": math.nan, "seconds_to_accuracy": math.nan}
    for metric in run.metrics():
        if metric.kind == "train" and math.isfinite(metric.loss):
            recent.append(metric.loss)
            low = goals.loss is not None and len(recent) == WINDOW and sum(recent) / WINDOW <= goals.loss
            if low and math.isnan(found["seconds_to_loss"]):
                found["seconds_to_loss"] = metric.t - begun
        accuracy = metric.metrics.get("accuracy", -math.inf)
        high = goals.accuracy is not None and accuracy >= goals.accuracy
        if high and math.isnan(found["seconds_to_accuracy"]):
            found["seconds_to_accuracy"] = metric.t - begun
    return found
