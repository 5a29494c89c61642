"""Checks of tickets and contributions: exactly one life each, and nothing lost."""

from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.runs.fold import (
    ABANDONED,
    APPLIED,
    CANCELLED,
    COMMITTED,
    DROPPED,
    INSTALLED,
    OPEN,
    Fold,
    Ticket,
)
from pslab.runs.log import Line
from pswire.decisions import entries as e

# entry kind -> the states that a ticket may be in when it happens
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
# The words of a violation, by the state that the ticket is in.
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

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
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
            case e.Apply(_, _, _, parts) | e.Refuse(_, _, _, parts):
                numbers = [part.ticket for part in parts]
                for number in sorted({n for n in numbers if numbers.count(n) > 1}):
                    yield f"ticket {number} appears {numbers.count(number)} times in one update"
                for part in parts:
                    yield from _move(entry.kind, part.ticket, part.worker, state)


def _move(kind: str, number: int, worker: str | None, state: Fold) -> Iterator[str]:
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


def _purpose(ticket: Ticket) -> str:
    return "for the initial values" if ticket.base is None else "for a gradient"


class OneAtATime(LogCheck):
    """A worker has at most one open ticket; two, if the second says "ahead"."""

    name = "one open ticket"

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
        match entry.fact:
            case e.Initialise(worker, number):
                yield from self._begin(worker, number, False, state)
            case e.Grant(worker, number, _, _, ahead):
                yield from self._begin(worker, number, ahead, state)
            case e.Commit(worker, number) | e.Cancel(worker, number) | e.Abandon(worker, number):
                self._end(worker, number)
            case e.Install(_, number):
                for worker in list(self._open):
                    self._end(worker, number)

    def _begin(self, worker: str, number: int, ahead: bool, state: Fold) -> Iterator[str]:
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

    def finish(self, state: Fold) -> Iterator[str]:
        for worker in sorted({*state.committed, *state.applied, *state.dropped}):
            committed, applied, dropped = (
                state.committed[worker],
                state.applied[worker],
                state.dropped[worker],
            )
            pending = sum(t.state == COMMITTED and t.worker == worker for t in state.reading())
            if committed != applied + dropped + pending:
                yield (
                    f"{worker} committed {committed} contributions, but {applied} applied"
                    f" + {dropped} dropped + {pending} pending = {applied + dropped + pending}"
                )
            if pending and state.stop is not None and state.stop.success:
                yield f"the job ended in success, but {pending} contributions of {worker} are still pending"
