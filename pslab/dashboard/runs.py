"""A run folder for the page."""

import json
import math
from pathlib import Path
from typing import Any, Self

from pslab.dashboard.history import History
from pslab.runs.folder import Run, RunError
from pslab.runs.tail import RunTail

# Entries between two looks at what is to be kept in detail.
BATCH = 1000


class RunPage:
    """A run folder that is read as it grows. The constructor and `text` raise RunError.

    `history`: of what was read last; `entries`: their number; `end`: how the run ended, None while it goes on.
    """

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self._begin()
        self._read()

    @classmethod
    def of_job(cls, folder: Path, job: str) -> Self | None:
        """Return a job that has stopped; None if the folder is missing, has another job, or is unfinished."""
        try:
            if not Run(folder).stopped:
                return None
            page = cls(folder)
        except (RunError, OSError):
            return None
        return page if page.history.recorder.job.get("name") == job else None

    @property
    def entries(self) -> int:
        return self._tail.entries_read

    def text(self, known: int = -1) -> str:
        """Return the page's JSON; {"same": true} if a viewer with `known` entries has all, and the run goes on."""
        self._read()
        if self.end is None and known == self.entries:
            return '{"same":true}'
        found = {
            **self.history.to_json(),
            "entries": self.entries,
            "going": self.end is None,
            "ended": self.end,
        }
        return json.dumps(found, allow_nan=False, separators=(",", ":"))

    def _begin(self) -> None:
        self._tail, self.history = RunTail(self.run), History()
        self.end: dict[str, Any] | None = None

    def _read(self) -> None:
        if self._tail.cut():
            self._begin()
        try:
            for number, entry in enumerate(self._tail.entries()):
                self.history.recorder.see(entry)
                if number % BATCH == BATCH - 1:
                    self.history.keep()
            for metric in self._tail.evaluations():
                self.history.recorder.measured(metric)
        except RunError:
            self._begin()
            raise
        self.history.keep()
        self.end = self._end() if self.run.stopped else None

    def _end(self) -> dict[str, Any]:
        folder = str(self.run.path.absolute())
        try:
            # Read anew: the file may be another one's by now.
            found = Run(self.run.path).summary
        except RunError as error:
            return {"success": False, "reason": str(error), "version": 0, "metrics": {}, "folder": folder}
        return {
            "success": found.success,
            "reason": found.reason,
            "version": found.versions,
            "metrics": {k: v for k, v in found.metrics.items() if v is not None and math.isfinite(v)},
            "folder": folder,
        }
