"""What lies before the entries that are shown in detail: curves with fewer points, and counts. Pure."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from pslab.dashboard.recording import BACK, DONE, JOIN, LEAVE, LOST, Batch

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
