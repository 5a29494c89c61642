"""The queue of work units: fresh ones, returned parts, and the unit that each worker is in."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from psserver.coordinator.units import MAX_LOSSES, Rest, TicketPart, WorkTerms

# Returned parts are dealt after the fresh units of their epoch, unless there are more than this: it bounds memory.
MAX_RETURNED = 1024


@dataclass(slots=True)
class WorkQueue:
    """Deals the parts of all units of all epochs, each until it is counted. Without tickets, time or data.

    A worker's request is promised a part before the policy receives it, and dealt one when the policy grants it. A
    worker stays in its unit: it gets the next part of that unit, so that it can read on. Fresh units are dealt
    in order. Returned parts (`lose`, `come_back`, `release`) are dealt after the fresh units of their epoch and before
    those of the next epoch. If epochs are `apart`, the next one waits until nothing of this one is left. Memory is
    O(workers): fresh units are just a counter.

    If units are dealt by rank, `deal_round` assigns each worker its unit before it asks, so that the order of requests
    does not matter.

    `steps`: batches of one ticket.
    """

    terms: WorkTerms
    steps: int = 1
    # The next unit that was never dealt.
    epoch: int = 0
    unit: int = 0
    lost: list[Rest] = field(default_factory=list)
    # Worker -> the undealt rest of its unit.
    held: dict[str, Rest] = field(default_factory=dict)
    # Workers that asked and are not granted yet -> whether an item of the queue is reserved for them.
    promised: dict[str, bool] = field(default_factory=dict)
    # Workers that asked when the queue was empty -> their requested tickets.
    standby: dict[str, int] = field(default_factory=dict)
    # The number of parts whose tickets have no fate yet.
    outstanding: int = 0
    counted: int = 0
    skipped: int = 0
    # Those of the skipped ones that were too few for an update when they were dropped at last.
    short: int = 0
    # The version of the last call of `deal_round`.
    round: int = -1
    _reserved: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._reserved = sum(self.promised.values())

    # Questions

    @property
    def fresh(self) -> int:
        """The number of units of all epochs that were never dealt."""
        return (self.terms.epochs - self.epoch) * self.terms.units - self.unit

    @property
    def _dealt_out(self) -> bool:
        """Whether epochs are apart, one was dealt completely, and none of the next."""
        return self.terms.apart and self.epoch > 0 and not self.unit

    @property
    def _under_way(self) -> bool:
        return bool(self.outstanding or self.lost or self.held)

    @property
    def between_epochs(self) -> bool:
        """Whether epochs are apart, one is counted completely, and the next one begins."""
        return self._dealt_out and not self._under_way and self.fresh > 0

    @property
    def _open(self) -> int:
        """The number of fresh units that may be dealt now."""
        if not self.terms.apart:
            return self.fresh
        return 0 if self._dealt_out and self._under_way else min(self.fresh, self.terms.units - self.unit)

    @property
    def available(self) -> int:
        """The number of items that may be dealt and are not reserved."""
        return self._open + len(self.lost) - self._reserved

    @property
    def complete(self) -> bool:
        """Whether every part was counted or skipped."""
        return not (self.outstanding or self.lost or self.held) and self.fresh == 0

    @property
    def parts(self) -> int:
        """Parts per unit, if the terms say it; 0: the data shows it."""
        return -(-self.terms.batches // self.steps)

    def parts_of(self, unit: int) -> int:
        """Return the parts of that unit of an epoch, as `parts`."""
        last = self.terms.last if unit == self.terms.units - 1 else 0
        return -(-last // self.steps) or self.parts

    @property
    def parts_each(self) -> int:
        """Parts of an epoch, as `parts`."""
        return self.parts * (self.terms.units - 1) + self.parts_of(self.terms.units - 1)

    # Dealing

    def promise(self, worker: str, before: int = 0) -> bool:
        """Promise the worker a part, after `before` others. False: there is none for it now."""
        if worker in self.promised:
            return True
        kept = worker not in self.held
        if kept and self.available <= before:
            return False
        self.promised[worker] = kept
        self._reserved += kept
        return True

    def deal_round(self, version: int, workers: Iterable[str]) -> None:
        """Assign each of `workers` without a unit the next one, in order; once per `version`."""
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

    def deal(self, worker: str) -> TicketPart:
        """Return the part that the worker was promised."""
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
        if lost and (lost[0].epoch < self.epoch or not self.fresh or len(lost) > MAX_RETURNED):
            return lost.pop(0)
        rest = Rest(self.epoch, self.unit, stop=self.parts_of(self.unit))
        self.unit += 1
        if self.unit == self.terms.units:
            self.epoch, self.unit = self.epoch + 1, 0
        return rest

    def withdraw(self, worker: str) -> None:
        """Cancel the worker's request."""
        self._reserved -= self.promised.pop(worker, False)
        self.standby.pop(worker, None)

    def release(self, worker: str) -> None:
        """Return the rest of a leaving worker's unit to the queue."""
        self.withdraw(worker)
        rest = self.held.pop(worker, None)
        if rest is not None:
            self.lost.append(rest)

    def keep(self, worker: str, parts: Sequence[TicketPart]) -> None:
        """Reserve the worker's unit and its void `parts` until its process comes back."""
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
        """Release the units of workers that did not come back."""
        for worker in [name for name in self.held if name not in workers]:
            self.release(worker)

    # Fates of parts

    def count(self) -> None:
        """Count a part whose contribution was applied."""
        self.outstanding -= 1
        self.counted += 1

    def come_back(self, part: TicketPart) -> None:
        """Return a part whose ticket is void because its worker left or an update was made without it."""
        self.outstanding -= 1
        self._again(part)

    def left_over(self, fewest: int) -> bool:
        """Whether all that was skipped is the rest of the data, of fewer parts than the `fewest` of one update."""
        ends = self.terms.epochs if self.terms.apart else 1
        return bool(self.counted) and self.skipped == self.short <= (fewest - 1) * ends

    def lose(self, part: TicketPart, version: int, *, dropped: bool, short: bool = False) -> bool:
        """Return a part that its worker abandoned, or that the policy dropped at `version`.

        True: it is skipped instead, after `MAX_LOSSES` abandons, or as many drops without a new version in between:
        dealing it again would never end. `short`: it was dropped with others that were too few for an update.
        """
        self.outstanding -= 1
        again = not dropped or part.lost_at == version
        lost_at = version if dropped else part.lost_at
        part = replace(part, losses=part.losses + again, lost_at=lost_at)
        if again and part.losses >= MAX_LOSSES:
            self.skipped += 1
            self.short += short
            return True
        self._again(part)
        return False

    def _again(self, part: TicketPart) -> None:
        self.lost.append(Rest(part.epoch, part.unit, part.part, part.part + 1, part.losses, part.lost_at))

    # Ends of units that only the data shows

    def end(self, worker: str, part: TicketPart) -> None:
        """Note that the worker's unit ends with `part`."""
        rest = self.held.get(worker)
        if rest is None or (rest.epoch, rest.unit) != (part.epoch, part.unit) or rest.part <= part.part:
            return
        if self.promised.get(worker) is False:
            # The policy has its request already: deal one more part, which will turn out to be empty.
            rest.stop = rest.part + 1
        else:
            del self.held[worker]

    def void(self) -> None:
        """Forget a part that turned out to be empty, because its unit had ended."""
        self.outstanding -= 1
