"""A run folder's log and metrics as points, one for every few versions, read while the files grow.

A recovery truncates both files, which then grow again.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pslab.runs.fold import LogState
from pslab.runs.folder import DECISIONS, METRICS, SUMMARY, Metric, RunError, parse_metric
from pslab.runs.growing import Seen
from pslab.runs.log import Line, Malformed, read_log
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
    """Metrics of the versions since the previous point, up to `version`, which was made at `seconds` of the log.

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
    # Samples applied before.
    before: int
    losses: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    dropped: int = 0


class Points:
    """Converts the entries of a log, given in order, into a point for every `every` versions."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._log = LogState()
        self._window: _Window | None = None
        # Time of the newest update.
        self._applied_at = 0.0

    @property
    def version(self) -> int:
        """Version of the newest update."""
        return self._log.versions

    def see(self, entry: Line) -> Iterator[Point]:
        """Add an entry, and yield the point that it completes."""
        before = self._log.pending.samples
        self._log.see(entry.fact, entry.t)
        match entry.fact:
            case facts.Grant():
                # Speed is measured from the first grant, before which no worker could contribute.
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
        """Yield a point of the remaining versions, if any."""
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
    """Return the point of an evaluation in metrics.jsonl, without values that are not finite."""
    finite = {f"evaluation/{name}": v for name, v in metric.metrics.items() if math.isfinite(v)}
    return Point(metric.version, metric.t, finite)


@dataclass(frozen=True, slots=True)
class Grown:
    """A change of a file: after its first `kept` lines, which were returned before, it now has `lines`."""

    kept: int
    lines: list[str]


class LineTail:
    """The complete lines of a file that may grow, be truncated and grow again, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A hash of each returned line, to recognise lines after the file was truncated.
        self._given = array("q")
        self._begin()

    def _begin(self) -> None:
        self._seen, self._begun = Seen(), b""

    def read(self) -> Grown:
        """Return what has changed since the last call."""
        kept, lines = len(self._given), list[str]()
        for line in self._new():
            if line is None:
                # Another generation truncated the file, which still begins with some of the returned lines.
                again = self._again()
                kept, lines = min(kept, again), lines[: max(again - kept, 0)]
            else:
                lines.append(line.decode("utf-8", "replace"))
        return Grown(kept, lines)

    def first(self, count: int) -> Iterator[str]:
        """Yield the first `count` lines, or fewer if the file was truncated meanwhile."""
        with self.path.open("rb") as file:
            for line in islice(file, count):
                yield line.decode("utf-8", "replace")

    def _new(self) -> Iterator[bytes | None]:
        """Yield complete new lines, and None when the file was truncated, for `_again` to read from its beginning."""
        while True:
            try:
                with self.path.open("rb") as file:
                    data = self._seen.more(file)
            except FileNotFoundError:
                return
            if data is None:
                yield None
            elif not data:
                return
            else:
                yield from self._taken(data)

    def _taken(self, data: bytes) -> list[bytes]:
        self._seen.take(data)
        *whole, self._begun = (self._begun + data).split(b"\n")
        self._given.extend(map(hash, whole))
        return whole

    def _again(self) -> int:
        """Skip the returned lines that the file still has; return their number."""
        former, self._given = self._given, array("q")
        self._begin()
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for line in file:
                place = len(self._given)
                if not line.endswith(b"\n") or place == len(former) or hash(line[:-1]) != former[place]:
                    break
                self._taken(line)
        return len(self._given)


def only_void(version: int) -> int:
    """Ask for no points again but those of void versions."""
    return version


class RunFollower:
    """The points of a growing run; each is returned once.

    When a recovery takes versions back, `back` is called with the last remaining version. It returns the version after
    which points are repeated: the same or an earlier one. A malformed line raises RunError once a well-formed one
    follows; at the end of a file it may still be incomplete and is left for later.
    """

    def __init__(self, folder: Path, every: int = 1, back: Callable[[int], int] = only_void) -> None:
        self._folder, self._every, self._back = folder, every, back
        self._decisions, self._metrics = LineTail(folder / DECISIONS), LineTail(folder / METRICS)
        self._points, self._read = Points(every), 0
        # Returned lines of evaluations with their versions, and those to skip when a file is read again.
        self._evaluated: list[tuple[str, int]] = []
        self._known: Counter[str] = Counter()
        # By file name: why a line cannot be read.
        self._unreadable: dict[str, str] = {}

    def points(self) -> Iterator[Point]:
        """Yield the new points since the last call."""
        grown = self._decisions.read()
        if grown.kept < self._read:
            yield from self._go_back(grown.kept)
        for entry in read_log(grown.lines):
            yield from self._see(entry)
        self._read = grown.kept + len(grown.lines)
        yield from self._evaluations()

    def _see(self, entry: Line | Malformed) -> Iterator[Point]:
        if isinstance(entry, Malformed):
            self._unreadable.setdefault(DECISIONS, entry.problem)
        else:
            self._check(DECISIONS)
            yield from self._points.see(entry)

    def _go_back(self, kept: int) -> Iterator[Point]:
        self._points = Points(self._every)
        self._unreadable.clear()
        again = [point for entry in read_log(self._decisions.first(kept)) for point in self._see(entry)]
        wanted = self._back(self._points.version)
        # Evaluations of another generation may have been returned before the truncation was noticed.
        self._evaluated = [(line, version) for line, version in self._evaluated if version <= wanted]
        self._known = Counter(line for line, _ in self._evaluated)
        self._metrics = LineTail(self._metrics.path)
        yield from (point for point in again if point.version > wanted)

    def _evaluations(self) -> Iterator[Point]:
        for line in self._metrics.read().lines:
            metric = self._metric(line)
            if metric is None or metric.kind != "eval":
                continue
            if self._known[line]:
                self._known[line] -= 1
            else:
                self._evaluated.append((line, metric.version))
                yield evaluation(metric)

    def _metric(self, line: str) -> Metric | None:
        try:
            metric = parse_metric(line)
        except RunError as error:
            self._unreadable.setdefault(METRICS, str(error))
            return None
        self._check(METRICS)
        return metric

    def _check(self, name: str) -> None:
        if name in self._unreadable:
            raise RunError(f"{self._folder / name}: a line {self._unreadable[name]}")

    def rest(self) -> Iterator[Point]:
        """Yield the new points and a last one for the remaining versions. Call it once, at the end."""
        yield from self.points()
        if (self._folder / SUMMARY).is_file():
            # A run with a summary has written complete lines.
            for name in (DECISIONS, METRICS):
                self._check(name)
        yield from self._points.rest()
