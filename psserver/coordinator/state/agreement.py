"""Consistency checks of a saved state."""

import math
from collections import Counter
from collections.abc import Collection

from psserver.coordinator.state.records import CoordinatorState
from psserver.coordinator.tickets.table import AHEAD
from psserver.coordinator.timers import TAGS_LIMIT
from psserver.coordinator.work.queue import WorkQueue
from pswire.records import StateError


def check(state: CoordinatorState) -> None:
    """Raise StateError if parts of the state contradict each other."""
    live = {ticket.number: ticket for ticket in state.tickets}
    present = {member.worker: member for member in state.members}
    known = {tally.worker for tally in state.tallies}
    numbers = [ticket.number for ticket in (*state.tickets, *state.settled)]
    requested = [member.requested for member in state.members if member.requested is not None]
    held = Counter(ticket.worker for ticket in state.tickets if ticket.state == "open")
    for holds, what in (
        (state.entries > 0, "no entry was written: there is nothing to resume from"),
        (len(present) == len(state.members), "two members have one name"),
        (len({m.rank for m in state.members}) == len(state.members), "two members have one rank"),
        (known >= {*present, *(t.worker for t in state.tickets)}, "a worker has no tally"),
        (len(known) == len(state.tallies), "a worker has two tallies"),
        (len(set(numbers)) == len(numbers), "two tickets have one number"),
        (all(t.state != "settled" for t in state.tickets), "a ticket is open or pending, and settled"),
        (all(t.state == "settled" and t.fate for t in state.settled), "a settled ticket has no fate"),
        (all(n < state.next_number for n in (*numbers, *requested)), "a ticket's number is yet to be given"),
        (all(t.base <= state.version for t in state.tickets), "a ticket started from a version to come"),
        (all(t.index < state.entries for t in state.tickets), "a ticket was granted by an entry to come"),
        (all(count <= AHEAD for count in held.values()), f"a worker holds more than {AHEAD} open tickets"),
        (held.keys() <= present.keys(), "an open ticket is held by nobody"),
        (
            len(dict(state.timers)) == len(state.timers) <= TAGS_LIMIT,
            "two timers have one tag, or too many are set",
        ),
        (
            all(p.ticket in live and live[p.ticket].state == "pending" for p in state.folded),
            "a folded ticket is not pending",
        ),
        (
            math.isfinite(state.lr_scale) and state.lr_scale >= 0,
            "the factor of the learning rate is not a number from 0",
        ),
        (
            (state.empty_since is None) == any(member.ever_connected for member in state.members),
            "empty_since contradicts the members",
        ),
        *_work_agrees(state, present),
    ):
        if not holds:
            raise StateError(f"coordinator state: {what}")


def _work_agrees(state: CoordinatorState, present: Collection[str]) -> list[tuple[bool, str]]:
    """Return the checks of work units, of the tickets that have parts of them, and of workers that wait for one."""
    work, dealt = state.work, [ticket for ticket in state.tickets if ticket.part is not None]
    if work is None:
        return [(not dealt, "a ticket takes a part of a work unit, and the job deals none")]
    waiting = {worker for worker, _ in (*work.promised, *work.standby)}
    # Until a resumed job starts again, units stay reserved for workers that have not come back.
    holders = present if state.started else [tally.worker for tally in state.tallies]
    reserved = sum(kept for _, kept in work.promised)
    queue = WorkQueue.restored(work)
    return [
        (work.outstanding == len(dealt), "the work units dealt are not those of the tickets"),
        (waiting <= set(present), "a work unit is promised to somebody who is not a member"),
        ({worker for worker, _ in work.held} <= set(holders), "a work unit is kept for a stranger"),
        (
            queue.fresh >= 0 and reserved <= queue.fresh + len(work.lost),
            "more work units are kept than there are",
        ),
        (
            all(0 <= rest.unit < work.terms.units for rest in work.lost),
            "a work unit came back that there is not",
        ),
        (
            all(number < state.next_number for _, number in work.standby),
            "a ticket's number is yet to be given",
        ),
    ]
