"""Experiment trackers: the hook for MLflow, Weights & Biases and their like, and TensorBoard behind the same one.

While a run goes on, one thread reads the run folder and calls them."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pslab.observe.follow import Follower, Point
from pslab.runs.folder import SUMMARY, RunError
from psworker.job.errors import JobError, import_job_module, split_target

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
        """A point (see `pslab.observe.follow.Point`). `seconds`: since the job began, of the log's clock. After a
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
    """A tracker as `Observing` uses it: a point for every few versions."""

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


POLL = 0.5  # seconds between two looks at the run folder
# Seconds that trackers have at the end to take in what is left.
PATIENCE = 30.0


class Sink(Protocol):
    """What takes points. `every`: versions per point. A sink that raises is warned about and called no more."""

    @property
    def name(self) -> str: ...

    @property
    def every(self) -> int: ...

    def start(self, run: RunInfo) -> None: ...

    def add(self, points: Sequence[Point]) -> None: ...

    def back(self, version: int) -> int:
        """A recovery has taken back what is behind that version. Behind which one, of those up to it, are the points to
        be given again?"""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...


class Observing:
    """Around a run: `with Observing(run, sinks) as observing: ...`, then `observing.warnings`.

    Entering raises TrackerError when a sink does not start. Leaving waits until all have the whole run,
    for at most `patience` seconds. With `live` false they are given everything at the end: a simulation
    is not slowed down, and its clock is not ours.

    Sinks and followers belong to the observing thread. It sets `_failure` before `_started`; `warnings` are to be read
    after the `with`, and grow later only if a sink was given up as too slow.
    """

    def __init__(
        self, run: RunInfo, sinks: Sequence[Sink], *, live: bool = True, patience: float = PATIENCE
    ) -> None:
        self.warnings: list[str] = []
        self._run, self._patience = run, patience
        self._poll = POLL if live else None
        self._followers = [(sink, Follower(run.folder, sink.every, sink.back)) for sink in sinks]
        self._failure: TrackerError | None = None
        self._started, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._observe, name="observing", daemon=True)

    def __enter__(self) -> Self:
        if self._followers:
            self._thread.start()
            self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._followers:
            self._thread.join(self._patience)
        if self._thread.is_alive():
            names = ", ".join(sink.name for sink, _ in self._followers)
            self.warnings.append(f"{names}: did not take in the whole run within {self._patience:g} s")

    def _observe(self) -> None:
        try:
            for sink, _ in self._followers:
                try:
                    sink.start(self._run)
                except Exception as error:
                    self._failure = TrackerError(f"{sink.name}: start raised {_said(error)}")
                    return
        finally:
            self._started.set()
        while not self._over.wait(self._poll):
            self._each(lambda sink, follower: self._add(sink, list(follower.points())))
        summary = _summary(self._run.folder)
        self._each(lambda sink, follower: self._add(sink, list(follower.rest())))
        self._each(lambda sink, _: sink.finish(summary))

    def _add(self, sink: Sink, points: Sequence[Point]) -> None:
        if points:
            sink.add(points)

    def _each(self, act: Callable[[Sink, Follower], None]) -> None:
        """`act` with every sink and its follower; those that raise are left out from now on."""
        going = []
        for sink, follower in self._followers:
            try:
                act(sink, follower)
                going.append((sink, follower))
            except RunError as error:
                self.warnings.append(f"{sink.name}: {error}")
            except Exception as error:
                self.warnings.append(f"{sink.name} raised {_said(error)}; it is told no more of this run")
        self._followers = going


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _summary(folder: Path) -> Mapping[str, Any]:
    file = folder / SUMMARY
    if not file.is_file():
        return {"success": False, "reason": "the job came to no summary"}
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return summary
