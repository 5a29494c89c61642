"""A run folder's log and metrics as points, one for every few versions, also while the files grow.

A recovery cuts both files, and they go on from there."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pslab.runs.fold import Fold
from pslab.runs.folder import DECISIONS, METRICS, SUMMARY, Metric, RunError, parse_metric
from pslab.runs.growing import Seen
from pslab.runs.log import Line, Malformed, read_log
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


@dataclass(frozen=True, slots=True)
class Grown:
    """`lines`: the whole ones that follow on the first `kept`. Of those that were given before, those behind `kept` are
    in the file no more."""

    kept: int
    lines: list[str]


class LineTail:
    """The whole lines of a file that may still grow, be cut and grow again, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Of each line that was given: eight bytes tell one from all that may come to stand in its place.
        self._given = array("q")
        self._begin()

    def _begin(self) -> None:
        self._seen, self._begun = Seen(), b""

    def read(self) -> Grown:
        """What has changed since the last call."""
        kept, lines = len(self._given), list[str]()
        for line in self._new():
            if line is None:
                # Another generation has cut the file: its lines are those that were given, up to one of them.
                again = self._again()
                kept, lines = min(kept, again), lines[: max(again - kept, 0)]
            else:
                lines.append(line.decode("utf-8", "replace"))
        return Grown(kept, lines)

    def first(self, count: int) -> Iterator[str]:
        """So many lines from the beginning, or fewer if it was cut meanwhile."""
        with self.path.open("rb") as file:
            for line in islice(file, count):
                yield line.decode("utf-8", "replace")

    def _new(self) -> Iterator[bytes | None]:
        """Whole lines; None once the file is another one, from whose beginning `_again` reads."""
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
        """Go back to the end of the lines that the file still has. How many those are."""
        former, self._given = self._given, array("q")
        self._begin()
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for line in file:
                place = len(self._given)
                if not line.endswith(b"\n") or place == len(former) or hash(line[:-1]) != former[place]:
                    break
                self._taken(line)
        return len(self._given)


def anything(version: int) -> int:
    """Nothing but what is void is wanted again."""
    return version


class Follower:
    """The points of a run, as far as its files go; each is given once.

    Where a recovery takes versions back, `back` is called with the last one that is left, and says behind which version
    it wants the points again: that one or an earlier one. RunError at a line that cannot be read, once one that can
    follows on it; at the end of the files such lines are left for later, as one without an end is.
    """

    def __init__(self, folder: Path, every: int = 1, back: Callable[[int], int] = anything) -> None:
        self._folder, self._every, self._back = folder, every, back
        self._decisions, self._metrics = LineTail(folder / DECISIONS), LineTail(folder / METRICS)
        self._points, self._read = Points(every), 0
        # Lines of evaluations that were given, with their versions; and those that come again in a file read anew.
        self._evaluated: list[tuple[str, int]] = []
        self._known: Counter[str] = Counter()
        # Why a file cannot be read from some line on, by its name.
        self._unreadable: dict[str, str] = {}

    def points(self) -> Iterator[Point]:
        """What is new since the last call."""
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
        # What another generation has evaluated may have been given before the cut was seen.
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
        """What is new, and then the versions that made no whole point yet. Call it once, at the end."""
        yield from self.points()
        if (self._folder / SUMMARY).is_file():
            # Who came to a summary has written whole lines.
            for name in (DECISIONS, METRICS):
                self._check(name)
        yield from self._points.rest()
