"""A run's log and metrics as points: one for each version, and one for each evaluation."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pslab.runs.fold import LogState
from pslab.runs.log import Line
from pslab.runs.summary import Metric
from psserver.decisions import entries as facts

LOSS, MEAN, MOST, SPEED, ACCEPTED = (
    "loss",
    "staleness/mean",
    "staleness/max",
    "samples_per_second",
    "accepted_share",
)


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics of a version, which was made at `seconds` of the log.

    `metrics` has `loss` (the mean over contributions with a finite one), `staleness/mean` and
    `staleness/max` (versions), `samples_per_second` of applied contributions, and `accepted_share`
    (applied of applied and dropped). A point of an evaluation has `evaluation/NAME` instead.
    """

    version: int
    seconds: float
    metrics: Mapping[str, float]
    staleness: tuple[int, ...] = ()


class Points:
    """Converts the entries of a log, given in order, into the points of its versions."""

    def __init__(self) -> None:
        self._log = LogState()
        # Seconds of the version before, or of the first grant, before which no worker could contribute.
        self._since: float | None = None
        # Samples applied, and contributions dropped, until then and since then.
        self._samples = self._dropped = 0

    def see(self, entry: Line) -> Iterator[Point]:
        """Add an entry, and yield the point of the version that it makes."""
        before = self._log.pending.samples
        self._log.see(entry.fact, entry.t)
        match entry.fact:
            case facts.Grant() if self._since is None:
                self._since, self._samples = entry.t, before
            case facts.Drop():
                self._dropped += 1
            case facts.Apply(version, _, _, parts):
                yield self._point(version, entry.t, tuple(part.staleness for part in parts))
                self._since, self._samples, self._dropped = entry.t, self._log.pending.samples, 0

    def _point(self, version: int, t: float, ages: tuple[int, ...]) -> Point:
        losses, seconds = self._log.pending.losses, t - (t if self._since is None else self._since)
        metrics = {
            MEAN: sum(ages) / len(ages),
            MOST: float(max(ages)),
            ACCEPTED: len(ages) / (len(ages) + self._dropped),
        }
        if losses:
            metrics[LOSS] = sum(losses) / len(losses)
        if seconds > 0:
            metrics[SPEED] = (self._log.pending.samples - self._samples) / seconds
        return Point(version, t, metrics, ages)


def evaluation(metric: Metric) -> Point:
    """Return the point of an evaluation in metrics.jsonl, without values that are not finite."""
    finite = {f"evaluation/{name}": v for name, v in metric.metrics.items() if math.isfinite(v)}
    return Point(metric.version, metric.t, finite)
