"""How far a job is: epochs, batches, and the time that is left, for people who ask. Nothing is decided by it."""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from psserver.coordinator import Coordinator

# Seconds between two looks at the pace, and how many are remembered: of a minute, where each finds something new.
LOOK_EVERY, LOOKS = 1.0, 60


@dataclass(frozen=True, slots=True)
class HowFar:
    """`done` of `total` `unit`; `epoch` counts from 1 (0: there are none). `seconds_left`: NaN without a pace."""

    epoch: int
    epochs: int
    done: int
    total: int
    unit: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Extent:
    """What a worker has said of its data."""

    epochs: int
    batches: int


class Progress:
    """Of one job. A worker's extent and pace are kept for its name: no more of them than tallies."""

    def __init__(self) -> None:
        self._extents: dict[str, Extent] = {}
        # By unit, or by worker for its own batches: when, how much was done.
        self._looks: dict[str, deque[tuple[float, int]]] = {}
        self._looked = -math.inf

    def told(self, worker: str, extent: Extent) -> None:
        """By a member."""
        self._extents[worker] = extent

    def look(self, coordinator: Coordinator, now: float) -> None:
        """From time to time, for the pace."""
        if now - self._looked < LOOK_EVERY or coordinator.stopped is not None or not coordinator.started:
            return
        self._looked = now
        for name, done, _ in self._parts(coordinator):
            looks = self._looks.setdefault(name, deque(maxlen=LOOKS))
            # A slow worker has the same for many looks: its pace is that of more than a minute.
            if not looks or looks[-1][1] != done:
                looks.append((now, done))

    def how_far(self, coordinator: Coordinator, now: float) -> HowFar | None:
        """None where nobody knows how long the job will be."""
        found = self._measured(coordinator)
        if found is None:
            return None
        left = 0.0
        if found.done < found.total and coordinator.stopped is None:
            each = [self._left(*part, now) for part in self._parts(coordinator)]
            left = math.nan if not each or any(map(math.isnan, each)) else max(each)
        return replace(found, seconds_left=left)

    def missing(self, coordinator: Coordinator) -> dict[str, Any]:
        """As `Job.missing`. Where work units are dealt, others take up what one has left."""
        if coordinator.work is not None:
            found = _dealt(coordinator)
            left = 0 if coordinator.work.complete else max(1, found.total - found.done)
            return {"batches": {}, found.unit: left} if left else {}
        batches = dict[str, int | None]()
        for name in sorted(coordinator.roster.unfinished):
            extent, batch = self._extents.get(name), coordinator.roster.tally(name).next_batch
            batches[name] = None if extent is None else max(0, extent.batches - batch)
        for name, tally in coordinator.roster.tallies.items():
            if tally.missed and batches.get(name, 0) is not None:
                batches[name] = (batches.get(name) or 0) + tally.missed
        return {"batches": batches} if batches else {}

    def _parts(self, coordinator: Coordinator) -> list[tuple[str, int, int]]:
        """What the end waits for, each at a pace of its own: its name, how much is done, and of how much.

        Workers with data of their own do not take each other's, so the job goes on until the slowest of those that
        are here has done its part; of one that is lost nobody knows. All else is done together.
        """
        found = self._measured(coordinator)
        if found is None:
            return []
        if found.unit != "batches":
            return [(found.unit, found.done, found.total)]
        roster = coordinator.roster
        needed = [m.worker for m in roster.present.values() if m.state != "done" and m.absent_since is None]
        return [
            (
                name,
                min(roster.tally(name).next_batch, self._extents[name].batches),
                self._extents[name].batches,
            )
            for name in needed
            if name in self._extents
        ]

    def _left(self, name: str, done: int, total: int, now: float) -> float:
        """At its pace of late; NaN where it has none."""
        if done >= total:
            return 0.0
        looks = self._looks.get(name)
        if not looks or now <= looks[0][0] or done <= looks[0][1]:
            return math.nan
        return (total - done) * (now - looks[0][0]) / (done - looks[0][1])

    def _measured(self, coordinator: Coordinator) -> HowFar | None:
        data = _dealt(coordinator) if coordinator.work is not None else self._own(coordinator)
        versions = coordinator.terms.versions
        if not versions:
            return data
        limit = HowFar(0, 0, min(coordinator.version, versions), versions, "versions", math.nan)
        if data is None or not data.total:
            return limit
        # What comes first ends the job.
        return data if data.done / data.total > limit.done / limit.total else limit

    def _own(self, coordinator: Coordinator) -> HowFar | None:
        """Of workers with data of their own; None as long as one of them has not said how much."""
        roster = coordinator.roster
        taking_part = [name for name, tally in roster.tallies.items() if tally.arrived]
        taking_part = [n for n in taking_part if n in roster.present or n in self._extents]
        if not taking_part or any(name not in self._extents for name in taking_part):
            return None
        done = total = 0
        epochs = max(self._extents[name].epochs for name in taking_part)
        epoch = epochs
        for name in taking_part:
            extent, batch = self._extents[name], roster.tally(name).next_batch
            done, total = done + min(batch, extent.batches), total + extent.batches
            if name in roster.present and extent.batches:
                epoch = min(epoch, _epoch(batch, extent.batches, extent.epochs))
        return HowFar(epoch, epochs, done, total, "batches", math.nan)


def _dealt(coordinator: Coordinator) -> HowFar:
    work = coordinator.work
    assert work is not None
    terms = work.terms
    if work.parts:
        done, total = work.counted + work.skipped, terms.units * terms.epochs * work.parts
        return HowFar(_epoch(done, total, terms.epochs), terms.epochs, done, total, "parts", math.nan)
    total = terms.units * terms.epochs
    done = max(0, total - work.fresh - len(work.held) - len(work.lost))
    return HowFar(_epoch(done, total, terms.epochs), terms.epochs, done, total, "units", math.nan)


def _epoch(done: int, total: int, epochs: int) -> int:
    """The one that is under way."""
    return min(epochs, done * epochs // total + 1) if total else 0
