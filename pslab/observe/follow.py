"""A run folder's log and metrics, also while they grow, as points."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pslab.observe.points import Point, Points, evaluation
from pslab.runs import log
from pslab.runs.folder import DECISIONS, METRICS, RunError, parse_metric
from pslab.runs.reader import read_log


class LineTail:
    """The whole lines of a file that may still grow, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        # What has been read of a line whose end is not written yet.
        self._begun = b""

    def lines(self) -> list[str]:
        """Those that have been completed since the last call."""
        if self._file is None:
            if not self.path.is_file():
                return []
            self._file = self.path.open("rb")
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Follower:
    """The points of a run, as far as its files go; each is given once. Close it when done.

    RunError at a whole line that cannot be read; a last line without an end is left for later.
    """

    def __init__(self, folder: Path, every: int = 1) -> None:
        self._decisions, self._metrics = LineTail(folder / DECISIONS), LineTail(folder / METRICS)
        self._points = Points(every)

    def points(self) -> Iterator[Point]:
        """What is new since the last call."""
        for entry in read_log(self._decisions.lines()):
            if isinstance(entry, log.Malformed):
                raise RunError(f"{self._decisions.path}: a line {entry.problem}")
            yield from self._points.see(entry)
        for line in self._metrics.lines():
            try:
                metric = parse_metric(line)
            except RunError as error:
                raise RunError(f"{self._metrics.path}: a line {error}") from error
            if metric.kind == "eval":
                yield evaluation(metric)

    def rest(self) -> Iterator[Point]:
        """What is new, and then the versions that made no whole point yet. Call it once, at the end."""
        yield from self.points()
        yield from self._points.rest()

    def close(self) -> None:
        self._decisions.close()
        self._metrics.close()
