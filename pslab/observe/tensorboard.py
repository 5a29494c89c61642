"""TensorBoard event files of a run, written with tensorboardX, without TensorFlow."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pslab.observe.points import Point, Points, evaluation
from pslab.runs.folder import DECISIONS, EXPERIMENT, Run, RunError
from pslab.runs.tail import RunTail
from pswire.extras import how_to_install

# Versions per histogram of staleness.
HISTOGRAM_EVERY = 100
# Seconds between two looks at a run that is followed.
FOLLOW_EVERY = 1.0


def check_installed() -> None:
    """Raise RunError with what to install, if tensorboardX is missing."""
    if find_spec("tensorboardX") is None:
        raise RunError(f"event files need tensorboardX: {how_to_install('tensorboard')}")


def began_at(folder: Path) -> float:
    """Return when a run began, for TensorBoard's wall time: when its experiment file was written."""
    for name in (EXPERIMENT, DECISIONS):
        if (folder / name).is_file():
            return (folder / name).stat().st_mtime
    return time.time()


class EventFile:
    """One event file in `folder`. The step of a point is its version, its wall time `began` plus its seconds.

    `points`: the number written.
    """

    def __init__(self, folder: Path, began: float) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        self._began = began
        self._forget()

    def _forget(self) -> None:
        self._ages: Counter[int] = Counter()
        # Version at which the last histogram ended.
        self._histogram_at = 0
        self._last: Point | None = None
        self.points = 0

    def add(self, point: Point) -> None:
        """Write a point."""
        self.points += 1
        self._write(point, [{"tag": tag, "simple_value": value} for tag, value in point.metrics.items()])
        if not point.staleness:
            return
        self._ages.update(point.staleness)
        self._last = point
        if point.version - self._histogram_at >= HISTOGRAM_EVERY:
            self._histogram()

    def flush(self) -> None:
        """Have readers see what was written."""
        self._writer.flush()

    def _histogram(self) -> None:
        if self._last is not None and self._ages:
            self._write(self._last, [{"tag": "staleness", "histo": _histogram(self._ages)}])
            self._histogram_at = self._last.version
            self._ages.clear()

    def begin_anew(self) -> None:
        """Void for readers all that was written."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._forget()
        begun = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=0, session_log=begun))

    def _write(self, point: Point, values: list[dict[str, Any]]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        event = Event(wall_time=self._began + point.seconds, step=point.version, summary=summary)
        self._writer.write_event(event)

    def close(self) -> None:
        self._histogram()
        self._writer.close()


def _histogram(ages: Mapping[int, int]) -> Any:
    """Return a histogram with a bucket for each integer staleness, half a version wide on both sides."""
    from tensorboardX.proto.summary_pb2 import HistogramProto

    least, most = min(ages), max(ages)
    buckets = range(least, most + 1)
    return HistogramProto(
        min=least,
        max=most,
        num=sum(ages.values()),
        sum=sum(age * n for age, n in ages.items()),
        sum_squares=sum(age * age * n for age, n in ages.items()),
        bucket_limit=[age + 0.5 for age in buckets],
        bucket=[ages.get(age, 0) for age in buckets],
    )


def write_events(run: Path, target: Path, *, follow: bool = False) -> int:
    """Write event files of a run into `target`, replacing existing ones; return the number of points.

    `follow`: go on until the run has a summary, or KeyboardInterrupt, after which the files have all that the run had.
    Raises RunError when the run cannot be read or the files cannot be written.
    """
    check_installed()
    if not (run / DECISIONS).is_file():
        raise RunError(f"{run}: expected a run folder with {DECISIONS}, from which event files are made")
    reading = _Reading(run)
    try:
        # What cannot be read raises before an earlier file is removed.
        points = [] if follow else list(reading.points())
        for former in target.glob("events.out.tfevents.*"):
            former.unlink()
        file = EventFile(target, began_at(run))
        if follow:
            _follow(reading, file)
        for point in points:
            file.add(point)
        file.close()
    except OSError as error:
        raise RunError(f"{target}: cannot be written to: {error.strerror}") from error
    return file.points


class _Reading:
    """The points of a run that may grow, each once."""

    def __init__(self, run: Path) -> None:
        self.tail, self._versions = RunTail(Run(run)), Points()

    def cut(self) -> bool:
        """Return whether a recovery has cut the log: all points come once more then."""
        if self.tail.cut():
            self._versions = Points()
            return True
        return False

    def points(self) -> Iterator[Point]:
        """Yield the new points. Raises RunError."""
        for entry in self.tail.entries():
            yield from self._versions.see(entry)
        yield from map(evaluation, self.tail.evaluations())


def _follow(reading: _Reading, file: EventFile) -> None:
    def look() -> None:
        if reading.cut():
            file.begin_anew()
        for point in reading.points():
            file.add(point)
        file.flush()

    with suppress(KeyboardInterrupt):
        while not reading.tail.run.stopped:
            look()
            time.sleep(FOLLOW_EVERY)
    look()
