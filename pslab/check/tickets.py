"""Checks of tickets, contributions and parts of work units: each has exactly one fate, and nothing is lost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pslab.check.log_check import LogCheck
from pslab.runs.fold import (
    ABANDONED,
    APPLIED,
    CANCELLED,
    COMMITTED,
    DROPPED,
    INSTALLED,
    OPEN,
    LoggedTicket,
    LogState,
)
from pslab.runs.log import Line
from psserver.decisions import entries as e

# Kind of entry -> the states in which a ticket may get it.
LEGAL: dict[str, tuple[str, ...]] = {
    "install": (OPEN,),
    "commit": (OPEN,),
    "fold": (COMMITTED,),
    "apply": (COMMITTED,),
    "refuse": (COMMITTED,),
    "drop": (COMMITTED,),
    "cancel": (OPEN,),
    "abandon": (OPEN,),
}
# How a violation describes the ticket's state.
DESCRIBED = {
    OPEN: "is open and was never committed",
    COMMITTED: "is already committed",
    APPLIED: "was already applied",
    DROPPED: "was already dropped",
    CANCELLED: "was cancelled",
    ABANDONED: "was abandoned",
    INSTALLED: "brought the initial values",
}


class TicketLife(LogCheck):
    """A ticket is granted once, committed at most once, and applied or dropped at most once, never both."""

    name = "tickets"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Initialise(_, number) | e.Grant(_, number):
                if number in state.tickets:
                    yield f"ticket {number} is granted a second time"
            case e.Install(_, number) | e.Fold(number):
                yield from _move(entry.kind, number, None, state)
            case e.Commit(worker, number) | e.Drop(worker, number):
                yield from _move(entry.kind, number, worker, state)
            case e.Cancel(worker, number) | e.Abandon(worker, number):
                yield from _move(entry.kind, number, worker, state)
            case e.Apply(_, _, _, parts):
                numbers = [part.ticket for part in parts]
                for number in sorted({n for n in numbers if numbers.count(n) > 1}):
                    yield f"ticket {number} appears {numbers.count(number)} times in one update"
                for part in parts:
                    yield from _move(entry.kind, part.ticket, part.worker, state)


def _move(kind: str, number: int, worker: str | None, state: LogState) -> Iterator[str]:
    ticket = state.tickets.get(number)
    if ticket is None:
        yield f"{kind} of ticket {number}, which was never granted"
        return
    if worker is not None and worker != ticket.worker:
        yield f"{kind} of ticket {number} by {worker}, but it was granted to {ticket.worker}"
    if ticket.state not in LEGAL[kind]:
        yield f"{kind} of ticket {number}, but it {DESCRIBED[ticket.state]}"
    elif (ticket.base is None) != (kind == "install") and kind not in ("cancel", "abandon"):
        yield f"{kind} of ticket {number}, which was {_purpose(ticket)}"


def _purpose(ticket: LoggedTicket) -> str:
    return "for the initial values" if ticket.base is None else "for a gradient"


class OneAtATime(LogCheck):
    """A worker has at most one open ticket; two, if the second is granted "ahead"."""

    name = "one open ticket"

    def __init__(self) -> None:
        # Not the fold's tickets: here a ticket stays open until an entry of its own worker ends it.
        self._open: dict[str, list[int]] = {}

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Initialise(worker, number):
                yield from self._begin(worker, number, False)
            case e.Grant(worker, number, _, _, ahead):
                yield from self._begin(worker, number, ahead)
            case e.Commit(worker, number) | e.Cancel(worker, number) | e.Abandon(worker, number):
                self._end(worker, number)
            case e.Install(_, number):
                for worker in list(self._open):
                    self._end(worker, number)

    def _begin(self, worker: str, number: int, ahead: bool) -> Iterator[str]:
        held = self._open.setdefault(worker, [])
        if held and not ahead:
            yield f"{worker} is granted ticket {number} while it holds ticket {held[-1]}"
        elif len(held) > 1:
            yield f"{worker} is granted ticket {number} ahead while it holds tickets {held[0]} and {held[1]}"
        elif ahead and not held:
            yield f"{worker} is granted ticket {number} ahead, but it holds none"
        held.append(number)

    def _end(self, worker: str, number: int) -> None:
        if number in self._open.get(worker, ()):
            self._open[worker].remove(number)


class Accounting(LogCheck):
    """committed = applied + dropped + pending, and nothing is pending when the job ends in success."""

    name = "accounting"

    def finish(self, state: LogState) -> Iterator[str]:
        for worker in sorted({*state.committed, *state.applied, *state.dropped}):
            committed, applied, dropped = (
                state.committed[worker],
                state.applied[worker],
                state.dropped[worker],
            )
            pending = sum(t.state == COMMITTED and t.base is not None for t in state.held_of[worker])
            if committed != applied + dropped + pending:
                yield (
                    f"{worker} committed {committed} contributions, but {applied} applied"
                    f" + {dropped} dropped + {pending} pending = {applied + dropped + pending}"
                )
            if pending and state.stop is not None and state.stop.success:
                yield f"the job ended in success, but {pending} contributions of {worker} are still pending"


OUT, COUNTED, SKIPPED, ENDED = "out", "counted", "skipped", "beyond its end"
# How the reason of a stop begins when all work is done.
COMPLETE = "all work units are done"

Place = tuple[int, int, int]


@dataclass(slots=True)
class DealtUnit:
    """`length`: its number of parts, None while unknown. `parts`: state of each part that was dealt."""

    length: int | None
    parts: dict[int, str] = field(default_factory=dict)

    def missing(self) -> list[int]:
        """Return the parts that were neither counted nor skipped."""
        return [part for part in range(self.length or 0) if self.parts.get(part, OUT) == OUT]


class WorkUnitsCheck(LogCheck):
    """Each part of a work unit is applied once per epoch, and dealt again only after it came to nothing."""

    name = "work units"

    def __init__(self) -> None:
        self._terms: e.Work | None = None
        self._units: dict[tuple[int, int], DealtUnit] = {}
        # Ticket without a fate -> the part (epoch, unit, part) that it takes.
        self._places: dict[int, Place] = {}
        self._skipped = 0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Work() as terms:
                if state.version is not None and any(state.playing()):
                    yield "the job's work units are declared while workers train"
                # The units of the phase before are over.
                self._units.clear()
                self._places.clear()
                self._terms = terms if terms.units else None
            case e.Grant() as grant:
                yield from self._dealt(grant)
            case e.Commit(_, ticket, ends=True) if ticket in self._places:
                self._shorten(self._places[ticket], 1)
            case e.Apply(version, _, _, parts):
                for part in parts:
                    yield from self._counted(part.ticket, version)
            case e.Drop(_, ticket, _, _, skipped):
                self._came_back(ticket, skipped)
            case e.Cancel(_, ticket):
                self._came_back(ticket, False)
            case e.Abandon(_, ticket, _, skipped, ends):
                if ends and ticket in self._places:
                    self._end(self._places.pop(ticket))
                else:
                    self._came_back(ticket, skipped)

    def _dealt(self, grant: e.Grant) -> Iterator[str]:
        terms, place = self._terms, (grant.epoch, grant.unit, grant.part)
        if terms is None:
            if grant.unit is not None:
                yield f"ticket {grant.ticket} takes a part of a work unit, and the job deals none"
            return
        epoch, unit, part = place
        if epoch is None or unit is None or part is None:
            yield f"ticket {grant.ticket} takes no part of a work unit, and the job deals them"
            return
        if not (epoch < terms.epochs and unit < terms.units and (not terms.length or part < terms.length)):
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)}, which does not exist"
            return
        early = min((other for other, _, _ in self._places.values()), default=epoch)
        if terms.apart and early < epoch:
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)} before epoch {early} has counted"
        found = self._units.setdefault((epoch, unit), DealtUnit(terms.length or None))
        if part in found.parts:
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)}, which is {found.parts[part]} already"
        found.parts.setdefault(part, OUT)
        self._places[grant.ticket] = (epoch, unit, part)

    def _counted(self, ticket: int, version: int) -> Iterator[str]:
        place = self._places.pop(ticket, None)
        if place is None:
            return
        epoch, unit, part = place
        parts = self._units[epoch, unit].parts
        if parts.get(part) == COUNTED:
            yield f"version {version} counts {_named(epoch, unit, part)} a second time"
        parts[part] = COUNTED

    def _came_back(self, ticket: int, skipped: bool) -> None:
        place = self._places.pop(ticket, None)
        if place is None:
            return
        epoch, unit, part = place
        parts = self._units[epoch, unit].parts
        self._skipped += skipped
        if skipped:
            parts[part] = SKIPPED
        elif parts.get(part) == OUT:
            del parts[part]

    def _shorten(self, place: Place, more: int) -> None:
        epoch, unit, part = place
        found, length = self._units[epoch, unit], part + more
        found.length = length if found.length is None else min(found.length, length)

    def _end(self, place: Place) -> None:
        self._shorten(place, 0)
        epoch, unit, part = place
        self._units[epoch, unit].parts[part] = ENDED

    def finish(self, state: LogState) -> Iterator[str]:
        terms, stop = self._terms, state.stop
        if terms is None or stop is None or not stop.reason.startswith(COMPLETE):
            return
        for epoch in range(terms.epochs):
            for unit in range(terms.units):
                found = self._units.pop((epoch, unit), None)
                if found is None:
                    yield f"epoch {epoch}, unit {unit} was never dealt, although the log says that {COMPLETE}"
                elif found.length is None:
                    yield f"epoch {epoch}, unit {unit} was not read to its end, although the log says that {COMPLETE}"
                elif missing := found.missing():
                    yield f"{_named(epoch, unit, missing[0])} was not counted, although the log says that {COMPLETE}"

    def remarks(self, state: LogState) -> Iterator[str]:
        if self._skipped:
            yield f"{self._skipped} parts of work units were skipped: they were given up or dropped too often"


def _named(epoch: int, unit: int, part: int) -> str:
    return f"epoch {epoch}, unit {unit}, part {part}"
