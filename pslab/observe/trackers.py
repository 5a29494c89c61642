"""Experiment trackers: the hook for MLflow, Weights & Biases and their like, and TensorBoard behind the same one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pslab.observe.points import Point
from psworker.job.errors import JobError
from psworker.job.importing import import_job_module, split_target

METHODS = ("start", "log", "finish")


class TrackerError(ValueError):
    """A tracker that cannot be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a tracker is told first. `experiment`: sections, with every default.

    `virtual`: seconds are those of the simulator's clock.
    """

    name: str
    folder: Path
    experiment: Mapping[str, Any]
    virtual: bool


class Tracker(Protocol):
    """All three are called in one thread, in this order, `log` any number of times."""

    def start(self, run: RunInfo) -> None:
        """Before any process starts. An exception ends the run before it began."""
        ...

    def log(self, metrics: Mapping[str, float], version: int, seconds: float) -> None:
        """A point (see `pslab.observe.points.Point`). `seconds`: since the job began, of the log's clock. After a
        recovery the versions that it took back come again: of each the last call is true."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Once. `summary`: summary.json, or `success` and `reason` alone where the run came to none."""
        ...


def load_trackers(targets: Sequence[str]) -> list[tuple[str, Tracker]]:
    """(target, tracker) for each "module:Class" or "path/file.py:Class", called without arguments. TrackerError."""
    return [(target, _load(target)) for target in targets]


def _load(target: str) -> Tracker:
    try:
        place, attribute = split_target(target)
        module = import_job_module(place)
    except JobError as error:
        raise TrackerError(f"tracker {target}: {error}\n{error.details}".rstrip()) from error
    if not hasattr(module, attribute):
        raise TrackerError(f"tracker {target}: {place} has no {attribute!r}")
    try:
        tracker: Tracker = getattr(module, attribute)()
    except Exception as error:
        raise TrackerError(f"tracker {target}: it cannot be made: {type(error).__name__}: {error}") from error
    missing = [method for method in METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise TrackerError(f"tracker {target} lacks {', '.join(missing)}; expected {', '.join(METHODS)}")
    return tracker


class TrackerSink:
    """A tracker as `pslab.observe.live` uses it: a point for every few versions."""

    def __init__(self, name: str, tracker: Tracker, every: int) -> None:
        self.name, self.every = f"tracker {name}", every
        self._tracker = tracker

    def start(self, run: RunInfo) -> None:
        self._tracker.start(run)

    def add(self, points: Sequence[Point]) -> None:
        for point in points:
            self._tracker.log(point.metrics, point.version, point.seconds)

    def back(self, version: int) -> int:
        return version

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._tracker.finish(summary)
