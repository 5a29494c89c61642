"""The queue of work units: what was not dealt yet, what came back, and what each worker is in the middle of."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from psserver.coordinator.work.units import MOST_LOSSES, Rest, UnitPart, WorkTerms

# What came back is dealt after the epoch's other units, but for so much of it: the queue's memory is bounded.
MOST_KEPT = 1024


@dataclass(frozen=True, slots=True)
class QueueState:
    """A `WorkQueue` as a value. `promised`: (worker, an item of the queue is kept for it)."""

    terms: WorkTerms
    steps: int
    epoch: int
    unit: int
    lost: list[Rest]
    held: list[tuple[str, Rest]]
    promised: list[tuple[str, bool]]
    standby: list[tuple[str, int]]
    outstanding: int
    counted: int
    skipped: int
    round: int = -1


@dataclass(slots=True)
class WorkQueue:
    """Deals the parts of all units of all epochs, each until it is counted. Knows no tickets, no time, no data.

    A worker's request is promised a part before the policy hears of it, and dealt one when the policy grants it. A
    worker stays in its unit: it gets that unit's next part, so that it can read on where it is. Fresh units are dealt
    in order; what came back (`lose`, `depart`) is dealt behind the fresh units of its epoch and before the next
    epoch's; where epochs are `apart`, that one waits until nothing of this one is left. Memory is O(workers): of
    fresh units only the next one's number is kept.

    Where units are dealt by rank, `deal_round` gives each worker the unit that it will be dealt from, before it asks:
    then it does not matter who asks first.

    `steps`: batches of one ticket.
    """

    terms: WorkTerms
    steps: int = 1
    # The next unit that was never dealt.
    epoch: int = 0
    unit: int = 0
    lost: deque[Rest] = field(default_factory=deque)
    # Of a worker's unit: what it was not dealt yet.
    held: dict[str, Rest] = field(default_factory=dict)
    # Those that asked and were not granted yet; True where an item of the queue is kept for them.
    promised: dict[str, bool] = field(default_factory=dict)
    # Those that asked when there was nothing, and their requests.
    standby: dict[str, int] = field(default_factory=dict)
    # Parts of tickets that have no fate yet.
    outstanding: int = 0
    counted: int = 0
    skipped: int = 0
    # The version for whose update `deal_round` was called last.
    round: int = -1
    _reserved: int = 0

    # Questions

    @property
    def fresh(self) -> int:
        """Units that were never dealt, in all epochs."""
        return (self.terms.epochs - self.epoch) * self.terms.units - self.unit

    @property
    def _dealt_out(self) -> bool:
        """Epochs are apart: one was dealt, and nothing of the next one."""
        return self.terms.apart and self.epoch > 0 and not self.unit

    @property
    def _under_way(self) -> bool:
        return bool(self.outstanding or self.lost or self.held)

    @property
    def between_epochs(self) -> bool:
        """Epochs are apart: one has counted, and the next one begins."""
        return self._dealt_out and not self._under_way and self.fresh > 0

    @property
    def _open(self) -> int:
        """Units that were never dealt and may be now."""
        if not self.terms.apart:
            return self.fresh
        return 0 if self._dealt_out and self._under_way else min(self.fresh, self.terms.units - self.unit)

    @property
    def available(self) -> int:
        """Items that nobody holds and nobody was promised."""
        return self._open + len(self.lost) - self._reserved

    @property
    def complete(self) -> bool:
        """Every part was counted or skipped."""
        return not (self.outstanding or self.lost or self.held) and self.fresh == 0

    @property
    def parts(self) -> int:
        """Of each unit, as far as the terms say it; 0: the data shows it."""
        return -(-self.terms.batches // self.steps)

    # Dealing

    def promise(self, worker: str, before: int = 0) -> bool:
        """The worker asks, and `before` others come before it. False: there is nothing for it now."""
        if worker in self.promised:
            return True
        kept = worker not in self.held
        if kept and self.available <= before:
            return False
        self.promised[worker] = kept
        self._reserved += kept
        return True

    def deal_round(self, version: int, workers: Iterable[str]) -> None:
        """Give each of `workers` that needs a unit the next one, in their order; once for each `version`."""
        if version == self.round:
            return
        self.round = version
        for worker in workers:
            reserved = self.promised.get(worker, False)
            if worker not in self.held and (reserved or self.available > 0):
                self.held[worker] = self._next()
                if reserved:
                    self.promised[worker] = False
                    self._reserved -= 1

    def deal(self, worker: str) -> UnitPart:
        """The part that the worker was promised."""
        kept = self.promised.pop(worker)
        self._reserved -= kept
        rest = self._next() if kept else self.held[worker]
        part = rest.take()
        if rest.over:
            self.held.pop(worker, None)
        else:
            self.held[worker] = rest
        self.outstanding += 1
        return part

    def _next(self) -> Rest:
        lost = self.lost
        if lost and (lost[0].epoch < self.epoch or not self.fresh or len(lost) > MOST_KEPT):
            return lost.popleft()
        rest = Rest(self.epoch, self.unit, stop=self.parts)
        self.unit += 1
        if self.unit == self.terms.units:
            self.epoch, self.unit = self.epoch + 1, 0
        return rest

    def withdraw(self, worker: str) -> None:
        """It waits for nothing any more."""
        self._reserved -= self.promised.pop(worker, False)
        self.standby.pop(worker, None)

    def release(self, worker: str) -> None:
        """It goes: others get the rest of its unit."""
        self.withdraw(worker)
        rest = self.held.pop(worker, None)
        if rest is not None:
            self.lost.append(rest)

    def keep(self, worker: str, parts: Sequence[UnitPart]) -> None:
        """The worker's process is gone and expected back: it goes on where it was, with `parts` that are void."""
        self.withdraw(worker)
        self.outstanding -= len(parts)
        if not parts:
            return
        first, last, rest = parts[0], parts[-1], self.held.pop(worker, None)
        stop = last.part + 1
        if rest is not None:
            if (rest.epoch, rest.unit, rest.part) == (last.epoch, last.unit, stop):
                stop = rest.stop
            else:
                self.lost.append(rest)
        self.held[worker] = Rest(first.epoch, first.unit, first.part, stop, first.losses, first.lost_at)

    def release_all_but(self, workers: Container[str]) -> None:
        """Those that did not come back lose what was kept for them."""
        for worker in [name for name in self.held if name not in workers]:
            self.release(worker)

    # What becomes of a part

    def count(self) -> None:
        """A part's contribution was applied."""
        self.outstanding -= 1
        self.counted += 1

    def come_back(self, part: UnitPart) -> None:
        """Its ticket is void (its worker has left, or an update went on without it): deal it again."""
        self.outstanding -= 1
        self._again(part)

    def lose(self, part: UnitPart, version: int, *, dropped: bool) -> bool:
        """Its worker gave it up, or the policy dropped it at `version`. True: it is skipped, once it was given up
        `MOST_LOSSES` times, or dropped so often while no version was made: dealing it again would never end."""
        self.outstanding -= 1
        again = not dropped or part.lost_at == version
        part = replace(part, losses=part.losses + again, lost_at=version if dropped else part.lost_at)
        if part.losses >= MOST_LOSSES:
            self.skipped += 1
            return True
        self._again(part)
        return False

    def _again(self, part: UnitPart) -> None:
        self.lost.append(Rest(part.epoch, part.unit, part.part, part.part + 1, part.losses, part.lost_at))

    def end(self, worker: str, part: UnitPart) -> None:
        """The worker found that its unit has nothing behind `part`."""
        rest = self.held.get(worker)
        if rest is None or (rest.epoch, rest.unit) != (part.epoch, part.unit) or rest.part <= part.part:
            return
        if self.promised.get(worker) is False:
            # The policy has heard of its request: it is dealt one part that turns out to be none.
            rest.stop = rest.part + 1
        else:
            del self.held[worker]

    def void(self) -> None:
        """A part turned out to be none: its unit had ended before."""
        self.outstanding -= 1

    # State

    def state(self) -> QueueState:
        """A copy of all that it knows."""
        return QueueState(
            self.terms,
            self.steps,
            self.epoch,
            self.unit,
            [replace(rest) for rest in self.lost],
            [(worker, replace(rest)) for worker, rest in self.held.items()],
            list(self.promised.items()),
            list(self.standby.items()),
            self.outstanding,
            self.counted,
            self.skipped,
            self.round,
        )

    @classmethod
    def restored(cls, state: QueueState) -> "WorkQueue":
        """A queue that goes on from there."""
        promised = dict(state.promised)
        return cls(
            state.terms,
            state.steps,
            state.epoch,
            state.unit,
            deque(replace(rest) for rest in state.lost),
            {worker: replace(rest) for worker, rest in state.held},
            promised,
            dict(state.standby),
            state.outstanding,
            state.counted,
            state.skipped,
            state.round,
            sum(promised.values()),
        )
