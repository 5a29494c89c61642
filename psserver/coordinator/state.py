"""The state of a coordinator: plain data under one `JobState`, from which saving, reading and checking follow.

A field that is added to a class below `JobState` is saved, read, copied and compared with no other line. A field that
its `__init__` does not take is an index over the others, and is made again. All times are seconds of the job.
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from psserver.coordinator.changes import PolicyChanges
from psserver.coordinator.finite import KeptBack
from psserver.coordinator.roster import Roster
from psserver.coordinator.terms import Extent, JobTerms, Proposal, Stopped
from psserver.coordinator.tickets import AHEAD, TicketTable
from psserver.coordinator.timers import TAGS_LIMIT, Timers
from psserver.coordinator.units import WorkTerms
from psserver.coordinator.work import WorkQueue
from psserver.policies import Part
from psserver.records import StateError, from_plain

# Seconds that a job can last: arithmetic with them stays exact to a second.
LONGEST = 1e15


@dataclass(slots=True)
class PresentPolicy:
    """The policy that decides, and what it remembers. `remembers`: filled when the state is saved."""

    name: str
    knobs: dict[str, object]
    remembers: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class JobState:
    """Everything that decides what a coordinator does next, but for the policy's code and the terms of the process
    (timeouts, when to stop).

    `workers`, `servers` and `seed` are those of the job; the state of another job is refused. To resume on
    another number of servers, set `servers` and use `psserver.shard.reshard`. Sessions authenticate a worker's process,
    so keep a saved state as private as a key.
    """

    workers: int
    servers: int
    seed: int
    policy: PresentPolicy
    tickets: TicketTable
    # The time of the newest input.
    now: float = 0.0
    # Entries of the decision log so far, which is the number of the next one.
    entries: int = 0
    version: int = 0
    # By the newest Join that was admitted with another one; the log settles it right before version 0.
    proposal: Proposal = Proposal()
    roster: Roster = field(default_factory=Roster)
    # None if the job deals no work units.
    work: WorkQueue | None = None
    initialised: bool = False
    started: bool = False
    # Between two phases: members that stay may begin the next one.
    resting: bool = False
    # Why the last phase ended; and why the present one ends before its data does, until it is over.
    phase_ended: str = ""
    phase_ends: str = ""
    # The number of finished phases.
    phase: int = 0
    # The next phase's work units are not declared yet.
    undeclared: bool = False
    # Of the present phase: the first worker that named a digest of what its model computes, and this digest.
    function: tuple[str, str] = ("", "")
    stopped: Stopped | None = None
    # The worker that is asked to evaluate at the end, and the number of the stop's entry.
    evaluator: str | None = None
    stop_index: int = 0
    # Smoothed loss of recent commits, and smoothed seconds from grant to commit; None before the first.
    loss: float | None = None
    usual_step: float | None = None
    # Factor of the initial learning rate.
    lr_scale: float = 1.0
    # How much data each worker has, if it says so.
    extents: dict[str, Extent] = field(default_factory=dict)
    # Version and time of the newest checkpoint, or of the beginning.
    saved_version: int = 0
    saved_at: float = 0.0
    # When the first session was up.
    first_session: float | None = None
    # When the job resumed from a checkpoint, and the members before it, if known; until it has started again.
    resumed_at: float | None = None
    expected: frozenset[str] = frozenset()
    # The parts in the shards' open sum, in order.
    folded: dict[int, Part] = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    changes: PolicyChanges = field(default_factory=PolicyChanges)
    kept_back: KeptBack = field(default_factory=KeptBack)

    @property
    def trains(self) -> bool:
        """Whether the policy decides: the job has started, and has neither come to rest nor stopped."""
        return self.started and self.stopped is None

    @property
    def over(self) -> bool:
        """Whether the job has stopped and every worker has left."""
        return self.stopped is not None and not self.roster.present

    @property
    def work_terms(self) -> WorkTerms | None:
        """How the job's data is dealt; None if it is not."""
        return None if self.work is None else self.work.terms

    @classmethod
    def new(cls, terms: JobTerms, name: str, knobs: dict[str, object]) -> "JobState":
        """Return the state of a job that begins."""
        tickets = TicketTable(terms.first_ticket)
        return cls(terms.workers, terms.servers, terms.seed, PresentPolicy(name, knobs), tickets)

    @classmethod
    def read(cls, data: object) -> "JobState":
        """Read what `Coordinator.saved` returned. Raises StateError for anything else, and if parts contradict each
        other."""
        state = from_plain(cls, data, "coordinator state")
        check(state)
        return state


def check(state: JobState) -> None:
    """Raise StateError if parts of the state contradict each other."""
    live, present, known = state.tickets.live, state.roster.present, state.roster.tallies
    settled = [ticket for recent in state.tickets.settled.values() for ticket in recent]
    tickets = list(live.values())
    numbers = [ticket.number for ticket in (*tickets, *settled)]
    requested = [member.requested for member in present.values() if member.requested is not None]
    held = Counter(ticket.worker for ticket in tickets if ticket.state == "open")
    for holds, what in (
        (0 <= state.now <= LONGEST, f"now should be seconds from 0 to {LONGEST:g}, got {state.now:g}"),
        (state.entries > 0, "no entry was written: there is nothing to resume from"),
        (all(name == member.worker for name, member in present.items()), "a member has two names"),
        (all(number == ticket.number for number, ticket in live.items()), "a ticket has two numbers"),
        (len({m.rank for m in present.values()}) == len(present), "two members have one rank"),
        (known.keys() >= {*present, *(t.worker for t in tickets)}, "a worker has no tally"),
        (len(set(numbers)) == len(numbers), "two tickets have one number"),
        (all(t.state != "settled" for t in tickets), "a ticket is open or pending, and settled"),
        (all(t.state == "settled" and t.fate for t in settled), "a settled ticket has no fate"),
        (
            all(n < state.tickets.next_number for n in (*numbers, *requested)),
            "a ticket's number is yet to be given",
        ),
        (all(t.base <= state.version for t in tickets), "a ticket started from a version to come"),
        (all(t.index < state.entries for t in tickets), "a ticket was granted by an entry to come"),
        (all(count <= AHEAD for count in held.values()), f"a worker holds more than {AHEAD} open tickets"),
        (held.keys() <= present.keys(), "an open ticket is held by nobody"),
        (len(state.timers.pending) <= TAGS_LIMIT, "too many timers are set"),
        (
            all(number in live and live[number].state == "pending" for number in state.folded),
            "a folded ticket is not pending",
        ),
        (
            math.isfinite(state.lr_scale) and state.lr_scale >= 0,
            "the factor of the learning rate is not a number from 0",
        ),
        (
            (state.roster.empty_since is None) == any(m.ever_connected for m in present.values()),
            "empty_since contradicts the members",
        ),
        *_work_agrees(state, present),
    ):
        if not holds:
            raise StateError(f"coordinator state: {what}")


def _work_agrees(state: JobState, present: Collection[str]) -> list[tuple[bool, str]]:
    """Return the checks of work units, of the tickets that have parts of them, and of workers that wait for one."""
    work, dealt = state.work, [t for t in state.tickets.live.values() if t.part is not None]
    if work is None:
        return [(not dealt, "a ticket takes a part of a work unit, and the job deals none")]
    # Until a resumed job starts again, units stay reserved for workers that have not come back.
    holders = present if state.started else state.roster.tallies.keys()
    reserved = sum(work.promised.values())
    return [
        (work.outstanding == len(dealt), "the work units dealt are not those of the tickets"),
        (
            {*work.promised, *work.standby} <= set(present),
            "a work unit is promised to somebody who is not a member",
        ),
        (work.held.keys() <= set(holders), "a work unit is kept for a stranger"),
        (
            work.fresh >= 0 and reserved <= work.fresh + len(work.lost),
            "more work units are kept than there are",
        ),
        (
            all(0 <= rest.unit < work.terms.units for rest in work.lost),
            "a work unit came back that there is not",
        ),
        (
            all(number < state.tickets.next_number for number in work.standby.values()),
            "a ticket's number is yet to be given",
        ),
    ]
