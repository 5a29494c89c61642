"""Experiment trackers: the interface for MLflow, Weights & Biases and others.

During a run, one thread reads the run folder and calls them.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pslab.observe.follow import Follower, Point
from pslab.runs.folder import SUMMARY, RunError
from psworker.job.errors import JobError, import_job_module, split_target

METHODS = ("start", "log", "finish")


class TrackerError(ValueError):
    """A tracker cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that a tracker receives. `experiment`: all sections with defaults.

    `virtual`: whether seconds are those of the simulator's clock.
    """

    name: str
    folder: Path
    experiment: Mapping[str, Any]
    virtual: bool


class Tracker(Protocol):
    """A user's tracker. One thread calls `start`, any number of `log`, then `finish`."""

    def start(self, run: RunInfo) -> None:
        """Begin, before any process starts. An exception cancels the run."""
        ...

    def log(self, metrics: Mapping[str, float], version: int, seconds: float) -> None:
        """Receive a point (see `pslab.observe.follow.Point`). `seconds`: since the job began, on the log's clock.

        Versions that a recovery takes back are repeated; the last call for a version counts.
        """
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End, once. `summary`: summary.json, or only `success` and `reason` if there is none."""
        ...


def load_trackers(targets: Sequence[str]) -> list[tuple[str, Tracker]]:
    """Instantiate "module:Class" or "path/file.py:Class" targets; return (target, tracker). Raises TrackerError."""
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
        raise TrackerError(f"tracker {target}: its constructor raised {_describe(error)}") from error
    missing = [method for method in METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise TrackerError(
            f"tracker {target}: expected methods {', '.join(METHODS)}, got none of {', '.join(missing)}"
        )
    return tracker


# Seconds between two reads of the run folder.
POLL = 0.5
# Seconds that trackers have at the end for the remaining points.
PATIENCE = 30.0


class Observing:
    """Context manager that passes a run to trackers: `with Observing(run, trackers) as observing: ...`.

    Entering raises TrackerError when a tracker does not start; one that raises later is not called again. Leaving waits
    until all have the whole run, for at most `patience` seconds. Read `warnings` after that. With `live` false, they
    receive everything at the end, so that a simulation is not slowed down.

    Trackers and follower belong to the observing thread, which sets `_failure` before `_started`.
    """

    def __init__(
        self,
        run: RunInfo,
        trackers: Sequence[tuple[str, Tracker]],
        *,
        every: int = 1,
        live: bool = True,
        patience: float = PATIENCE,
    ) -> None:
        """`trackers`: as `load_trackers` returns them. `every`: versions that make one point."""
        self.warnings: list[str] = []
        self._run, self._patience = run, patience
        self._poll = POLL if live else None
        self._trackers, self._follower = list(trackers), Follower(run.folder, every)
        self._failure: TrackerError | None = None
        self._started, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._observe, name="observing", daemon=True)

    def __enter__(self) -> Self:
        if self._trackers:
            self._thread.start()
            self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self._patience)
        if self._thread.is_alive():
            names = ", ".join(f"tracker {name}" for name, _ in self._trackers)
            self.warnings.append(f"{names}: did not process the whole run within {self._patience:g} s")

    def _observe(self) -> None:
        try:
            for name, tracker in self._trackers:
                try:
                    tracker.start(self._run)
                except Exception as error:
                    self._failure = TrackerError(f"tracker {name}: start raised {_describe(error)}")
                    return
        finally:
            self._started.set()
        try:
            while not self._over.wait(self._poll):
                self._log(self._follower.points())
            summary = _summary(self._run.folder)
            self._log(self._follower.rest())
        except RunError as error:
            self.warnings += [f"tracker {name}: {error}" for name, _ in self._trackers]
            return
        self._each(lambda tracker: tracker.finish(summary))

    def _log(self, points: Iterable[Point]) -> None:
        for point in points:
            self._each(partial(_tell, point))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Call `act` with every tracker, and drop those that raise."""
        going = []
        for name, tracker in self._trackers:
            try:
                act(tracker)
                going.append((name, tracker))
            except Exception as error:
                self.warnings.append(
                    f"tracker {name} raised {_describe(error)}; it receives no more of this run"
                )
        self._trackers = going


def _tell(point: Point, tracker: Tracker) -> None:
    tracker.log(point.metrics, point.version, point.seconds)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _summary(folder: Path) -> Mapping[str, Any]:
    file = folder / SUMMARY
    if not file.is_file():
        return {"success": False, "reason": "the job wrote no summary"}
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return summary
