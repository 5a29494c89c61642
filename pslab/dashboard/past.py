"""A long log in parts that a browser can hold, and the past before each part as curves and counts. Pure."""

import json
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from pslab.dashboard.recording import BACK, DONE, JOIN, LEAVE, LISTS, LOST, Batch, Recorder
from pslab.runs.log import Line

# Points of a curve of the whole run.
POINTS = 2000
# Recent grants of one worker whose contribution may still come; a worker that prefetches has two.
OPEN = 4
# Marks that say whether a worker is present.
PRESENCE = (JOIN, LOST, BACK, LEAVE, DONE)


@dataclass
class Past:
    """Curves and counts of the batches added so far, in order."""

    updates: list[list[Any]] = field(default_factory=list)
    # (worker, staleness) -> number of applied contributions; worker -> number of dropped ones.
    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    evals: list[list[Any]] = field(default_factory=list)
    # Committed but not settled tickets: number -> row.
    pending: dict[int, list[Any]] = field(default_factory=dict)
    _every: int = 1

    def add(self, batch: Batch) -> None:
        self.pending.update((row[0], row) for row in batch.get("tickets", ()))
        for ticket, applied, _, _, staleness, *_ in batch.get("fates", ()):
            row = self.pending.pop(ticket, None)
            worker = -1 if row is None else row[1]
            if applied:
                self.applied[worker, staleness] += 1
            else:
                self.dropped[worker] += 1
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
        }


@dataclass
class Before(Past):
    """A past with everything that later moments depend on: present workers, open tickets, where the time went."""

    # (worker, kind) -> newest mark; worker -> newest grants; kind of stretch -> seconds.
    marks: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    grants: dict[int, deque[list[Any]]] = field(default_factory=dict)
    kinds: Counter[int] = field(default_factory=Counter)

    def add(self, batch: Batch) -> None:
        super().add(batch)
        for _, kind, begin, end, _ in batch.get("stretches", ()):
            self.kinds[kind] += end - begin
        for mark in batch.get("marks", ()):
            if mark[1] in PRESENCE:
                self.marks[mark[0], mark[1]] = mark
        for grant in batch.get("grants", ()):
            self.grants.setdefault(grant[1], deque(maxlen=OPEN)).append(grant)
        committed = {row[0] for row in batch.get("tickets", ())}
        for worker, rows in self.grants.items():
            self.grants[worker] = deque((row for row in rows if row[0] not in committed), maxlen=OPEN)

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "marks": sorted(self.marks.values(), key=lambda mark: mark[2]),
            "grants": sorted((row for rows in self.grants.values() for row in rows), key=lambda row: row[3]),
            "tickets": list(self.pending.values()),
            "kinds": list(self.kinds.items()),
        }


# Log entries per part.
PART = 40_000


class Parts:
    """A log in parts of equal size. Add entries in order, then call `flush` before reading. Full parts never change."""

    def __init__(self, size: int = PART) -> None:
        self.count = 0
        # Begin and end of each part in seconds.
        self.spans: list[list[float]] = []
        self._size = size
        self._recorder = Recorder()
        self._before = Before()
        self._full: list[bytes] = []
        self._open: Batch = {name: [] for name in LISTS}
        self._newest = ""
        # The newest update's row.
        self._final: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def workers(self) -> list[str]:
        return self._recorder.workers

    def see(self, entry: Line) -> None:
        """Add an entry."""
        # A full part is closed by the entry behind it, so that no part is empty.
        if self.count and self.count % self._size == 0:
            self._close()
        self._recorder.see(entry)
        self.count += 1

    def flush(self) -> None:
        """Make the added entries readable."""
        batch = self._recorder.take()
        for name in LISTS:
            self._open[name] += batch.pop(name, [])
        self._open |= batch
        self._final = self._open["updates"][-1] if self._open["updates"] else self._final
        begin = self.spans[len(self._full) - 1][1] if self._full else 0.0
        self.spans[len(self._full) :] = [[begin, self._recorder.seconds]]
        self._newest = ""

    def _close(self) -> None:
        self.flush()
        self._full.append(zlib.compress(self._text().encode(), 1))
        self._before.add(self._open)
        self._open = {name: [] for name in LISTS}

    def _text(self) -> str:
        body = {name: values for name, values in self._open.items() if name not in ("workers", "evals")}
        return json.dumps({**body, "past": self._before.to_json()}, allow_nan=False, separators=(",", ":"))

    def body(self, number: int) -> str:
        """Return a part as a JSON object: its rows as in `Recorder`, and `past`."""
        if number < len(self._full):
            return zlib.decompress(self._full[number]).decode()
        self._newest = self._newest or self._text()
        return self._newest

    def whole(self) -> dict[str, Any]:
        """Return what is true of the whole run."""
        return {
            "workers": self.workers,
            "parts": len(self),
            "spans": self.spans,
            "entries": self.count,
            "end": self._recorder.seconds,
            "final": self._final,
        }
