"""What a page has of a log: the newest entries in detail, and curves and counts of what was before them. Pure."""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from pslab.dashboard.recording import BACK, DONE, JOIN, LEAVE, LOST, Batch, Recorder

# Points of a curve of the whole run.
POINTS = 2000
# Rows of lists in detail: of about 50,000 log entries at least. A browser holds them.
ROWS = 200_000
# Marks that say whether a worker is present.
PRESENCE = (JOIN, LOST, BACK, LEAVE, DONE)


@dataclass
class Past:
    """Curves and counts of the batches added so far, in order, and what later moments depend on."""

    updates: list[list[Any]] = field(default_factory=list)
    # (worker, staleness) -> number of applied contributions; worker -> number of dropped ones.
    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    evals: list[list[Any]] = field(default_factory=list)
    # Committed but not settled tickets: number -> row.
    pending: dict[int, list[Any]] = field(default_factory=dict)
    # (worker, kind) -> newest mark; kind of stretch -> seconds.
    marks: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    kinds: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    _every: int = 1

    def add(self, batch: Batch) -> None:
        self.seconds = batch["seconds"]
        self.pending.update((row[0], row) for row in batch.get("tickets", ()))
        for ticket, applied, _, _, staleness, *_ in batch.get("fates", ()):
            row = self.pending.pop(ticket, None)
            worker = -1 if row is None else row[1]
            if applied:
                self.applied[worker, staleness] += 1
            else:
                self.dropped[worker] += 1
        for _, kind, begin, end, _ in batch.get("stretches", ()):
            self.kinds[kind] += end - begin
        self.marks.update(((row[0], row[1]), row) for row in batch.get("marks", ()) if row[1] in PRESENCE)
        self.updates += [row for row in batch.get("updates", ()) if row[0] % self._every == 0]
        self.evals += batch.get("evals", ())
        while len(self.updates) > POINTS:
            self._every *= 2
            self.updates = [row for row in self.updates if row[0] % self._every == 0]

    def to_json(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "evals": self.evals,
            "applied": [[worker, age, count] for (worker, age), count in self.applied.items()],
            "dropped": list(self.dropped.items()),
            "tickets": list(self.pending.values()),
            "marks": sorted(self.marks.values(), key=lambda mark: mark[2]),
            "kinds": list(self.kinds.items()),
            "seconds": self.seconds,
        }


class History:
    """A log for a page. Add entries and metrics to `recorder`, and call `keep` now and then.

    `seconds`: how much of the log's clock is in detail, at most.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.recorder = Recorder()
        self._most = seconds
        self._past = Past()
        self._recent: deque[tuple[int, Batch]] = deque()
        self._rows = 0

    def keep(self) -> Batch:
        """Return the rows since the last call. The oldest ones in detail become curves and counts."""
        batch = self.recorder.take()
        if rows := sum(len(values) for values in batch.values() if isinstance(values, list)):
            self._recent.append((rows, batch))
            self._rows += rows
        begin = self.recorder.seconds - self._most
        while self._recent and (self._rows > ROWS or self._recent[0][1]["seconds"] < begin):
            rows, oldest = self._recent.popleft()
            self._rows -= rows
            self._past.add(oldest)
        return batch

    def to_json(self) -> dict[str, Any]:
        return {
            "workers": self.recorder.workers,
            "job": self.recorder.job,
            "past": self._past.to_json(),
            "recent": [batch for _, batch in self._recent],
        }
