"""Checks of updates that a deadline makes: a timer fired before, and their limits hold."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pslab.check.log_check import LogCheck
from pslab.runs.fold import OPEN, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e

TAG = "deadline"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of updates by deadline.

    `share`: least share of the present workers. `budget`: share of all work that is cancelled in the long run, `burst`:
    tickets beyond it. `patience`: updates in a row that go on without a present worker; 0: no limit.
    """

    share: float = 0.0
    budget: float = 1.0
    burst: int = 0
    patience: int = 0


@dataclass
class Waste:
    """What updates have cancelled, under whatever policy. It outlives restarts of workers and servers.

    `missed`: by worker, the updates in a row that went on without it and cancelled its ticket. `credit`: the tickets
    that deadlines may still cancel; None: no deadline with a budget has decided yet.
    """

    missed: dict[str, int] = field(default_factory=dict)
    credit: float | None = None


class Deadlines(LogCheck):
    """An update that does not wait for all follows on a timer; limits of cancelled work and of left out workers hold.

    `limits`: None for a policy that sets no timer. `size`: contributions of an update; None: one of each worker.
    """

    def __init__(self, limits: Limits | None, size: int | None, waste: Waste) -> None:
        self._limits, self._size, self.waste = limits, size, waste
        # The deadline's timer has fired since the last update.
        self._fired = False
        if limits is not None and limits.budget < 1:
            waste.credit = float(limits.burst) if waste.credit is None else min(limits.burst, waste.credit)

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        limits = self._limits
        match entry.fact:
            case e.Timer(tag) if limits is None or tag != TAG:
                yield f"timer {tag} fires, which this policy does not set"
            case e.Timer():
                self._fired = True
            case e.Apply() as update:
                if limits is not None:
                    yield from self._update(update, limits, state)
                    self._earn(len(update.parts), limits)
                self._fired = False
                for part in update.parts:
                    self.waste.missed.pop(part.worker, None)
            case e.Cancel(worker, ticket, reason) if reason.startswith("version "):
                yield from self._cancel(worker, ticket, limits or Limits())

    def _earn(self, applied: int, limits: Limits) -> None:
        waste = self.waste
        if waste.credit is not None and limits.budget < 1:
            earned = waste.credit + applied * limits.budget / (1 - limits.budget)
            waste.credit = min(float(limits.burst), earned)

    def _update(self, update: e.Apply, limits: Limits, state: LogState) -> Iterator[str]:
        workers = {part.worker for part in update.parts}
        used = {part.ticket for part in update.parts}
        if self._size is None:
            missing = sorted(t.worker for t in state.reading() if t.state == OPEN and t.number not in used)
        elif len(update.parts) < self._size:
            missing = sorted(member.worker for member in state.playing())
        else:
            missing = []
        if not missing:
            return
        if not self._fired:
            yield f"version {update.version} does not wait for {', '.join(missing)}, and no deadline has passed"
        present = len(workers | {member.worker for member in state.playing()})
        if len(workers) < limits.share * present:
            yield (
                f"version {update.version} is made of {len(workers)} of {present} workers; this policy needs a share "
                f"of {limits.share:g}"
            )

    def _cancel(self, worker: str, ticket: int, limits: Limits) -> Iterator[str]:
        waste = self.waste
        missed = waste.missed[worker] = waste.missed.get(worker, 0) + 1
        if limits.patience and missed > limits.patience:
            yield f"ticket {ticket} of {worker} is cancelled, the {missed}th in a row; patience is {limits.patience}"
        if waste.credit is not None and limits.budget < 1:
            waste.credit -= 1
            if waste.credit < -1e-6:
                yield (
                    f"ticket {ticket} of {worker} is cancelled, {-waste.credit:g} more than the budget of "
                    f"{limits.budget:g} allows by now"
                )
