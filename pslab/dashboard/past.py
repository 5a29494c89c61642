"""A long log for a browser: parts that it holds at once, and the past before each as curves and counts. Pure."""

import json
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from pslab.dashboard.recording import BACK, DONE, JOIN, LEAVE, LISTS, LOST, Batch, Recorder
from pslab.runs.log import Line

# Points of the curves of the whole time.
POINTS = 2000
# Grants of one worker whose contribution may still come; one that asks ahead has two.
OPEN = 4
# Marks that tell whether a worker is there.
PRESENCE = (JOIN, LOST, BACK, LEAVE, DONE)


@dataclass
class Past:
    """Give it batches in order."""

    updates: list[list[Any]] = field(default_factory=list)
    # (worker, staleness) -> applied contributions; worker -> dropped ones.
    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    evals: list[list[Any]] = field(default_factory=list)
    # Committed and not settled: number -> its row.
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
    """And all that a moment after it depends on: who is there, who holds what, where the time went."""

    # Worker -> its newest mark of each kind; worker -> its newest grants; kind of stretch -> seconds.
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


# Entries of a part.
PART = 40_000


class Parts:
    """Give it entries in order, and say `seen` before you ask. Parts that are full never change."""

    def __init__(self, size: int = PART) -> None:
        self.count = 0
        # From which second to which each part goes.
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
        # Only now: a part that is full is closed by the entry after it, so no part is empty.
        if self.count and self.count % self._size == 0:
            self._close()
        self._recorder.see(entry)
        self.count += 1

    def seen(self) -> None:
        """Take in what `see` was given."""
        batch = self._recorder.take()
        for name in LISTS:
            self._open[name] += batch.pop(name, [])
        self._open |= batch
        self._final = self._open["updates"][-1] if self._open["updates"] else self._final
        begin = self.spans[len(self._full) - 1][1] if self._full else 0.0
        self.spans[len(self._full) :] = [[begin, self._recorder.seconds]]
        self._newest = ""

    def _close(self) -> None:
        self.seen()
        self._full.append(zlib.compress(self._text().encode(), 1))
        self._before.add(self._open)
        self._open = {name: [] for name in LISTS}

    def _text(self) -> str:
        body = {name: values for name, values in self._open.items() if name not in ("workers", "evals")}
        return json.dumps({**body, "past": self._before.to_json()}, allow_nan=False, separators=(",", ":"))

    def body(self, number: int) -> str:
        """A JSON object: the entries as `Recorder` has them, and `past`."""
        if number < len(self._full):
            return zlib.decompress(self._full[number]).decode()
        self._newest = self._newest or self._text()
        return self._newest

    def whole(self) -> dict[str, Any]:
        """What is true of the whole run."""
        return {
            "workers": self.workers,
            "parts": len(self),
            "spans": self.spans,
            "entries": self.count,
            "end": self._recorder.seconds,
            "final": self._final,
        }
