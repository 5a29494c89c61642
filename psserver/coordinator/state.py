"""All that a coordinator knows, as plain data between two inputs; taken out, checked, and taken up again."""

import math
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from psserver.coordinator.ledger import Ledger
from psserver.coordinator.members.roster import Member, Roster, Tally
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.terms import JobTerms, Stopped
from psserver.coordinator.tickets.table import AHEAD, REMEMBERED, Ticket, TicketTable
from psserver.coordinator.trials import Refusals
from psserver.coordinator.work.queue import QueueState, WorkQueue
from psserver.policies import Part, Policy
from pswire.records import StateError, from_plain, to_plain


@dataclass(frozen=True, slots=True)
class TallyState:
    """A `Tally` and whose it is. `staleness`: (staleness, how many) in the order of their first occurrence."""

    worker: str
    committed: int
    applied: int
    dropped: int
    samples: int
    staleness: list[tuple[int, int]]
    next_batch: int
    incarnations: int
    granted: int
    arrived: bool
    sessions: list[str]
    granted_at: float | None


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Everything but the policy's code and the terms of the process (timeouts, when to stop). JSON-able by `to_json`.

    `workers`, `servers`, `seed` and `optimizer` are those of the job: a state of another one is refused. To go on
    with another number of servers, say so: `replace(state, servers=...)`, beside `psserver.shard.reshard`.
    `entries`: the number that the next entry of the log gets. `began` and all other times are seconds of
    the clock of the process that saved it. `tickets`: open and pending ones in the order of their grants;
    `settled`: those that are remembered, each worker's oldest first. `folded`: what the shards have summed,
    in order. `refused`: updates in a row, the last ones, that were not made, with contributions of `refused_workers`.
    `policy_state` is the policy's own. Sessions are what a worker's process proves itself by:
    keep a saved state as private as a key.
    """

    workers: int
    servers: int
    seed: int
    optimizer: dict[str, object]
    policy: str
    knobs: dict[str, object]
    policy_state: dict[str, object]
    entries: int
    version: int
    initialised: bool
    started: bool
    stopped: Stopped | None
    evaluator: str | None
    stop_index: int
    saved_version: int
    saved_at: float
    loss: float | None
    lr_scale: float
    usual_step: float | None
    began: float
    next_number: int
    tickets: list[Ticket]
    settled: list[Ticket]
    folded: list[Part]
    refused: int
    refused_workers: list[str]
    members: list[Member]
    tallies: list[TallyState]
    prepared: list[str]
    unfinished: list[tuple[str, float]]
    empty_since: float | None
    # None in a job that deals no work units.
    work: QueueState | None = None

    def to_json(self) -> dict[str, object]:
        """As plain data that `json.dumps(..., allow_nan=False)` takes."""
        plain: dict[str, object] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object) -> "CoordinatorState":
        """Raises StateError for missing or unknown fields and for values of another type."""
        return from_plain(cls, data, "coordinator state")


def save(ledger: Ledger, driver: PolicyDriver) -> CoordinatorState:
    """A copy of all that they know. Raises StateError for a policy that cannot be saved."""
    roster, tickets, policy = ledger.roster, ledger.tickets, driver.policy
    return CoordinatorState(
        **_job(ledger.terms),
        policy=policy.name,
        knobs=to_plain(policy.knobs),
        policy_state=_policy_state(policy),
        entries=ledger.entries,
        version=ledger.version,
        initialised=ledger.initialised,
        started=ledger.started,
        stopped=ledger.stopped,
        evaluator=ledger.evaluator,
        stop_index=ledger.stop_index,
        saved_version=ledger.saved_version,
        saved_at=ledger.saved_at,
        loss=ledger.loss,
        lr_scale=ledger.lr_scale,
        usual_step=ledger.usual_step,
        began=ledger.began,
        next_number=tickets.next_number,
        tickets=[replace(ticket) for ticket in tickets.live.values()],
        settled=[replace(ticket) for recent in tickets.settled.values() for ticket in recent],
        # At the stop all that was pending was dropped.
        folded=list(driver.folded.values()) if ledger.stopped is None else [],
        refused=driver.refusals.count,
        refused_workers=list(driver.refusals.workers),
        members=[replace(member) for member in roster.present.values()],
        tallies=[_saved_tally(worker, tally) for worker, tally in roster.tallies.items()],
        prepared=sorted(roster.prepared),
        unfinished=list(roster.unfinished.items()),
        empty_since=roster.empty_since,
        work=None if ledger.work is None else ledger.work.state(),
    )


def _job(terms: JobTerms) -> dict[str, Any]:
    """What makes a job another one."""
    return {
        "workers": terms.workers,
        "servers": terms.servers,
        "seed": terms.seed,
        "optimizer": to_plain(terms.optimizer),
    }


def _saved_tally(worker: str, tally: Tally) -> TallyState:
    return TallyState(
        worker,
        tally.committed,
        tally.applied,
        tally.dropped,
        tally.samples,
        list(tally.staleness.items()),
        tally.next_batch,
        tally.incarnations,
        tally.granted,
        tally.arrived,
        sorted(tally.sessions),
        tally.granted_at,
    )


def take_up(state: CoordinatorState, ledger: Ledger, driver: PolicyDriver, shift: float) -> None:
    """Give a new ledger and driver that state; `shift` is added to every time.

    Raises StateError, with nothing changed, unless they are new, job and policy are the same with the same knobs
    and takes up its own state, and the parts of the state agree with each other.
    """
    policy = driver.policy
    if ledger.entries:
        raise StateError(f"expected a new coordinator, this one has written {ledger.entries} entries")
    for name, expected in _job(ledger.terms).items():
        if getattr(state, name) != expected:
            raise StateError(
                f"expected the state of a job with {name} = {expected}, got one with {name} = {getattr(state, name)}"
            )
    knobs = to_plain(policy.knobs)
    if (state.policy, state.knobs) != (policy.name, knobs):
        raise StateError(
            f"expected the state of policy {policy.name} with {knobs}, got one of {state.policy} with {state.knobs}"
        )
    _check(state)
    roster, tickets = roster_from(state, shift), tickets_from(state, shift)
    _restore_policy(policy, state.policy_state)
    # From here on nothing can fail.
    driver.folded = {part.ticket: part for part in state.folded}
    driver.refusals = Refusals(state.refused, dict.fromkeys(state.refused_workers))
    ledger.roster, ledger.tickets = roster, tickets
    ledger.entries, ledger.version, ledger.loss = state.entries, state.version, state.loss
    ledger.usual_step = state.usual_step
    ledger.lr_scale = state.lr_scale
    ledger.initialised, ledger.started = state.initialised, state.started
    stopped = state.stopped
    ledger.stopped = None if stopped is None else replace(stopped, at=stopped.at + shift)
    ledger.evaluator, ledger.stop_index = state.evaluator, state.stop_index
    ledger.began = state.began + shift
    ledger.saved_version, ledger.saved_at = state.saved_version, state.saved_at + shift
    ledger.work = None if state.work is None else WorkQueue.restored(state.work)


def reopened(state: CoordinatorState, policy: Policy) -> CoordinatorState:
    """Of a job that had stopped, a state that goes on: the policy begins anew, as `policy` is, for it was not told
    what became of its last tickets. Any other state is as it was."""
    if state.stopped is None:
        return state
    return replace(
        state,
        stopped=None,
        evaluator=None,
        policy_state=_policy_state(policy),
        members=[replace(member, known_to_policy=False) for member in state.members],
    )


def _policy_state(policy: Policy) -> dict[str, object]:
    """A policy may be anybody's code: whatever its `state` raises or returns, the answer is a sentence."""
    try:
        asked = policy.state()
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"policy {policy.name} cannot be saved: {type(error).__name__}: {error}") from error
    try:
        found = to_plain(asked)
    except StateError as error:
        raise StateError(f"policy {policy.name} cannot be saved: state(): {error}") from error
    if not isinstance(found, dict):
        raise StateError(f"policy {policy.name}: state() returned {found!r}; expected a dict")
    return found


def _restore_policy(policy: Policy, state: dict[str, object]) -> None:
    try:
        policy.restore(state)
    except Exception as error:
        raise StateError(
            f"policy {policy.name} cannot take up its state: {type(error).__name__}: {error}"
        ) from error


def _check(state: CoordinatorState) -> None:
    """What its parts must agree on, each with the sentence for when they do not."""
    live = {ticket.number: ticket for ticket in state.tickets}
    present = {member.worker: member for member in state.members}
    known = {tally.worker for tally in state.tallies}
    numbers = [ticket.number for ticket in (*state.tickets, *state.settled)]
    requested = [member.requested for member in state.members if member.requested is not None]
    held = Counter(ticket.worker for ticket in state.tickets if ticket.state == "open")
    for holds, what in (
        (state.entries > 0, "no entry was written: there is nothing to go on from"),
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
            all(p.ticket in live and live[p.ticket].state == "pending" for p in state.folded),
            "what is folded is not pending",
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
    """As in `_check`: of the work units, the tickets that take parts of them, and those that wait for one."""
    work, dealt = state.work, [ticket for ticket in state.tickets if ticket.part is not None]
    if work is None:
        return [(not dealt, "a ticket takes a part of a work unit, and the job deals none")]
    waiting = [worker for worker, _ in (*work.held, *work.promised, *work.standby)]
    reserved = sum(kept for _, kept in work.promised)
    queue = WorkQueue.restored(work)
    return [
        (work.outstanding == len(dealt), "the work units dealt are not those of the tickets"),
        (set(waiting) <= set(present), "a work unit is kept for somebody who is not a member"),
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


def roster_from(state: CoordinatorState, shift: float) -> Roster:
    roster = Roster(0.0)
    for saved in state.tallies:
        roster.tallies[saved.worker] = Tally(
            saved.committed,
            saved.applied,
            saved.dropped,
            saved.samples,
            Counter(dict(saved.staleness)),
            saved.next_batch,
            saved.incarnations,
            saved.arrived,
            set(saved.sessions),
            granted=saved.granted,
            granted_at=_shifted(saved.granted_at, shift),
        )
    for member in state.members:
        absent = _shifted(member.absent_since, shift)
        shifted = replace(member, since=member.since + shift, absent_since=absent)
        roster.add(shifted)
    roster.prepared = set(state.prepared)
    roster.unfinished = {worker: since + shift for worker, since in state.unfinished}
    roster.empty_since = _shifted(state.empty_since, shift)
    return roster


def _shifted(time: float | None, shift: float) -> float | None:
    return None if time is None else time + shift


def tickets_from(state: CoordinatorState, shift: float) -> TicketTable:
    table = TicketTable(state.next_number)
    for ticket in state.tickets:
        shifted = _later(ticket, shift)
        if shifted.state == "open":
            table.open(shifted)
        else:
            table.live[shifted.number] = shifted
    for ticket in state.settled:
        recent = table.settled.setdefault(ticket.worker, deque(maxlen=REMEMBERED))
        recent.append(_later(ticket, shift))
    return table


def _later(ticket: Ticket, shift: float) -> Ticket:
    former = _shifted(ticket.former, shift)
    return replace(ticket, granted_at=ticket.granted_at + shift, former=former)
