"""What trackers are given: a decision log as points, one for every few versions."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pslab.runs.fold import Fold
from pslab.runs.folder import Metric
from pslab.runs.log import Line
from pswire.decisions import entries as facts

LOSS, MEAN, MOST, SPEED, ACCEPTED = (
    "loss",
    "staleness/mean",
    "staleness/max",
    "samples_per_second",
    "accepted_share",
)


@dataclass(frozen=True, slots=True)
class Point:
    """Of the versions since the point before, up to `version`, which was made at `seconds` of the log.

    `metrics` has `loss` (the mean over contributions with a finite one), `staleness/mean` and
    `staleness/max` (versions), `samples_per_second` of applied contributions, and `accepted_share`
    (applied of applied and dropped). A point of an evaluation has `evaluation/NAME` instead.
    """

    version: int
    seconds: float
    metrics: Mapping[str, float]
    staleness: tuple[int, ...] = ()


@dataclass(slots=True)
class _Window:
    began: float
    # Samples that had been applied.
    before: int
    losses: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    dropped: int = 0


class Points:
    """Give it the entries of a log in order: it returns a point after every `every` versions, and the rest."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._log = Fold()
        self._window: _Window | None = None
        # The newest update.
        self._applied_at = 0.0

    @property
    def version(self) -> int:
        """Of the newest update."""
        return self._log.versions

    def see(self, entry: Line) -> Iterator[Point]:
        before = self._log.pending.samples
        self._log.see(entry.fact, entry.t)
        match entry.fact:
            case facts.Grant():
                # Speed counts from the first grant: nobody could contribute before.
                self._window = self._window or _Window(entry.t, before)
            case facts.Drop() if self._window is not None:
                self._window.dropped += 1
            case facts.Apply(version, _, _, parts):
                self._applied_at = entry.t
                self._window = self._window or _Window(entry.t, before)
                self._window.staleness += [part.staleness for part in parts]
                self._window.losses += self._log.pending.losses
                if version % self._every == 0:
                    yield from self.rest()

    def rest(self) -> Iterator[Point]:
        """The versions that are not in a point yet, if any."""
        window = self._window
        if window is None or not window.staleness:
            return
        ages, seconds = window.staleness, self._applied_at - window.began
        metrics = {
            MEAN: sum(ages) / len(ages),
            MOST: float(max(ages)),
            ACCEPTED: len(ages) / (len(ages) + window.dropped),
        }
        if window.losses:
            metrics[LOSS] = sum(window.losses) / len(window.losses)
        if seconds > 0:
            metrics[SPEED] = (self._log.pending.samples - window.before) / seconds
        yield Point(self.version, self._applied_at, metrics, tuple(ages))
        self._window = _Window(self._applied_at, self._log.pending.samples)


def evaluation(metric: Metric) -> Point:
    """The point of a line of metrics.jsonl that is an evaluation; what is not finite is left out."""
    finite = {f"evaluation/{name}": v for name, v in metric.metrics.items() if math.isfinite(v)}
    return Point(metric.version, metric.t, finite)
