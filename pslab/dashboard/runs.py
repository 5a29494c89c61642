"""A run folder for the page: its log in parts."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pslab.dashboard.past import PART, Parts
from pslab.runs.folder import METRICS, Metric, Run, RunError
from pslab.runs.growing import Seen
from pslab.runs.log import Line, Malformed, read_log
from psserver.decisions.entries import Job


@dataclass(frozen=True, slots=True)
class RunRest:
    """The end of a run that has stopped: entries from some number on, all evaluations, and how it ended."""

    entries: list[Line]
    evaluations: list[Metric]
    end: dict[str, Any]


def rest_of(folder: Path, job: str, first: int) -> RunRest | None:
    """Return the end of a job from its folder; None if the folder is missing, has another job, or is unfinished."""
    try:
        run = Run(folder)
        if not run.stopped:
            return None
        entries = run.decisions()
        begin = next(entries, None)
        if begin is None or not isinstance(begin.fact, Job) or begin.fact.job != job:
            return None
        evaluations = [metric for metric in run.metrics() if metric.kind == "eval"]
        return RunRest(
            [entry for entry in chain([begin], entries) if entry.i >= first], evaluations, end_of(run)
        )
    except (RunError, OSError):
        return None


def end_of(run: Run) -> dict[str, Any]:
    """Return how a stopped run ended, for the page. Raises RunError."""
    found = run.summary
    return {
        "success": found.success,
        "reason": found.reason,
        "version": found.versions,
        "metrics": {k: v for k, v in found.metrics.items() if v is not None and math.isfinite(v)},
        "folder": str(run.path.absolute()),
    }


class RunPages:
    """A run folder that is read incrementally. The constructor and all methods may raise RunError."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self._begin()

    def _begin(self) -> None:
        self._parts = Parts(PART)
        self._position, self._lines = Seen(), 0
        self._stopped = False
        self._evals: list[list[Any]] = []

    def parts(self) -> int:
        """Return the number of parts."""
        self._read()
        return len(self._parts)

    def part(self, number: int, known: int = -1) -> str:
        """Return JSON: the rows of a part, the past before it, and what is true of the whole run.

        Part -1 is the last one. `known`: number of entries that the page has; if there are no more, the result is
        {"same": true}. Raises RunError for an unknown part.
        """
        self._read()
        parts = self._parts
        if known == parts.count and not self._stopped:
            return '{"same":true}'
        if not -1 <= number < len(parts):
            raise RunError(f"{self.run.path}: expected a part from 0 to {len(parts) - 1}, got {number}")
        number = number if number >= 0 else len(parts) - 1
        begin, end = parts.spans[number]
        last = number == len(parts) - 1
        head = {
            **parts.whole(),
            "part": number,
            "begin": begin,
            "evals": [row for row in self._evals if last or row[0] < end],
            "going": not self._stopped,
            "ended": self._ended() if self._stopped else None,
        }
        # Join two JSON objects as text, because full parts are stored as text.
        return json.dumps(head, allow_nan=False, separators=(",", ":"))[:-1] + "," + parts.body(number)[1:]

    def _ended(self) -> dict[str, Any]:
        try:
            return end_of(self.run)
        except RunError as error:
            failed = {"success": False, "reason": str(error), "version": 0, "metrics": {}}
            return {**failed, "folder": str(self.run.path.absolute())}

    def _read(self) -> None:
        with self.run.log.open("rb") as log:
            if self._position.more(log, 1) is None:
                # A recovery truncated it, or another run started in this folder.
                self._begin()
        stopped, end = self.run.stopped, self.run.readable()
        if end == self._position.offset and stopped == self._stopped and len(self._parts):
            return
        try:
            before = self._parts.count
            self._read_log(end)
            if before != self._parts.count or stopped != self._stopped:
                self._read_evaluations(stopped)
        except RunError:
            self._begin()
            raise
        self._stopped = stopped

    def _read_log(self, end: int) -> None:
        """Add the new entries, up to byte `end` of the log."""
        before = self._lines
        for entry in read_log(self._new_lines(end)):
            if isinstance(entry, Malformed):
                raise RunError(f"{self.run.log}:{before + entry.line}: {entry.problem}")
            self._parts.see(entry)
        self._parts.flush()

    def _new_lines(self, end: int) -> Iterator[str]:
        with self.run.log.open("rb") as file:
            file.seek(self._position.offset)
            while self._position.offset < end and (line := file.readline()):
                self._position.take(line)
                self._lines += 1
                yield line.decode("utf-8", "replace")

    def _read_evaluations(self, stopped: bool) -> None:
        self._evals = [
            [m.t, m.version, {k: v for k, v in m.metrics.items() if v == v and abs(v) != float("inf")}]
            for m in self._metrics(stopped)
            if m.kind == "eval"
        ]

    def _metrics(self, stopped: bool) -> Iterator[Metric]:
        if not (self.run.path / METRICS).is_file():
            return
        try:
            yield from self.run.metrics()
        except RunError:
            # The last line may be incomplete while the run goes on.
            if stopped:
                raise
