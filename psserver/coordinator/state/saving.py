"""Save and restore a coordinator's state."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psserver.coordinator.changes import ChangeState
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.members.roster import REMEMBERED_SESSIONS, REMEMBERED_TICKETS, Roster, Tally
from psserver.coordinator.policy_driver import PolicyDriver, Refusals
from psserver.coordinator.state.agreement import check
from psserver.coordinator.state.records import CoordinatorState, TallyState
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.tickets.table import Ticket, TicketTable
from psserver.coordinator.timers import Timers
from psserver.coordinator.work.queue import WorkQueue
from psserver.policies import Policy, PolicyError, build
from psserver.policies.loading import spec_of
from psserver.policies.policy import config_of
from pswire.records import StateError, to_plain


def save(ledger: Ledger, driver: PolicyDriver) -> CoordinatorState:
    """Copy the whole state. Raises StateError for a policy that cannot be saved."""
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
        first_session=ledger.first_session,
        resting=ledger.resting,
        phase_ended=ledger.phase_ended,
        phase=ledger.phase,
        undeclared=ledger.undeclared,
        timers=list(driver.timers.pending.items()),
        timers_paused_since=driver.timers.paused_since,
        timers_idle=driver.timers.idle,
        changes=_changes(driver),
        resumed_at=ledger.resumed_at,
        expected=sorted(ledger.expected),
        extents=list(ledger.extents.items()),
        phase_ends=ledger.phase_ends,
        function=ledger.function,
        trials=driver.trials,
    )


def _changes(driver: PolicyDriver) -> ChangeState:
    state = driver.changes.state()
    return state if driver.controller is None else replace(state, controller=driver.controller.state())


def _job(terms: JobTerms) -> dict[str, Any]:
    """Return the terms that identify a job."""
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
        list(tally.sessions),
        tally.granted_at,
        tally.lost,
        tally.phase_batch,
        tally.missed,
        tally.weight,
    )


def restore(state: CoordinatorState, ledger: Ledger, driver: PolicyDriver, shift: float) -> None:
    """Restore the state into a new ledger and driver; `shift` is added to every time.

    Raises StateError, with nothing changed, unless ledger and driver are new, job, policy and knobs are the same, the
    policy accepts its own state, and the state is consistent.
    """
    if ledger.entries:
        raise StateError(f"expected a new coordinator, this one has written {ledger.entries} entries")
    for name, expected in _job(ledger.terms).items():
        if getattr(state, name) != expected:
            raise StateError(
                f"expected the state of a job with {name} = {expected}, got one with {name} = {getattr(state, name)}"
            )
    check(state)
    policy = present_policy(state, driver.policy)
    asked = state.changes.waiting
    waiting = None if asked is None else _built(state, asked.name, asked.knobs)
    roster, tickets = roster_from(state, shift), tickets_from(state, shift)
    tickets.next_number = max(tickets.next_number, ledger.terms.first_ticket)
    if bool(state.changes.controller) != (driver.controller is not None):
        has, wants = ("a", "without") if state.changes.controller else ("no", "with")
        raise StateError(f"expected the state of a job {wants} a controller, got one with {has} controller")
    _restore_policy(policy, state.policy_state)
    if driver.controller is not None:
        driver.controller.restore(state.changes.controller)
    # From here on nothing can fail.
    driver.policy, driver.ahead = policy, policy.ahead
    driver.changes.restore(state.changes, waiting)
    driver.folded = {part.ticket: part for part in state.folded}
    driver.timers = Timers(tuple(state.timers), state.timers_paused_since, state.timers_idle)
    driver.refusals = Refusals(state.refused, dict.fromkeys(state.refused_workers))
    driver.trials = state.trials
    ledger.roster, ledger.tickets = roster, tickets
    ledger.entries, ledger.version, ledger.loss = state.entries, state.version, state.loss
    ledger.usual_step = state.usual_step
    ledger.lr_scale = state.lr_scale
    ledger.initialised, ledger.started = state.initialised, state.started
    ledger.resting, ledger.phase, ledger.undeclared = state.resting, state.phase, state.undeclared
    ledger.phase_ended, ledger.phase_ends = state.phase_ended, state.phase_ends
    ledger.function = state.function
    ledger.resumed_at, ledger.expected = _shifted(state.resumed_at, shift), frozenset(state.expected)
    ledger.extents = dict(state.extents)
    stopped = state.stopped
    ledger.stopped = None if stopped is None else replace(stopped, at=stopped.at + shift)
    ledger.evaluator, ledger.stop_index = state.evaluator, state.stop_index
    ledger.began = state.began + shift
    ledger.first_session = _shifted(state.first_session, shift)
    ledger.saved_version, ledger.saved_at = state.saved_version, state.saved_at + shift
    ledger.work = None if state.work is None else WorkQueue.restored(state.work)


def present_policy(state: CoordinatorState, policy: Policy) -> Policy:
    """Return the policy that decides in `state`, new: `policy`, with which the job began, or the one that took over.

    Raises StateError unless the job began with `policy`, and for a policy that cannot have taken over.
    """
    began = state.changes.began_with or {"name": state.policy, **state.knobs}
    configured = to_plain(config_of(policy))
    if began != configured:
        raise StateError(f"expected the state of a job that began with policy {configured}, got {began}")
    if not state.changes.began_with:
        return policy
    present = _built(state, state.policy, state.knobs)
    try:
        present.check_succession(policy)
    except PolicyError as error:
        raise StateError(str(error)) from error
    return present


def _built(state: CoordinatorState, name: str, knobs: Mapping[str, object]) -> Policy:
    """Build a policy that a change has named. Raises StateError; a state names no code of its own."""
    try:
        spec_of(name)
        return build(name, knobs, state.workers, state.servers)
    except PolicyError as error:
        raise StateError(f"coordinator state: {error}") from error


def reopened(state: CoordinatorState, policy: Policy) -> CoordinatorState:
    """Return a stopped job's state as one that can continue; return any other state as it is.

    `policy`: a new one of the kind with which the job began. The one that decides never learned the fate of its last
    tickets, and goes on without them. Raises StateError.
    """
    if state.stopped is None:
        return state
    present = present_policy(state, policy)
    try:
        present.go_on(state.policy_state, state.version)
    except Exception as error:
        raise StateError(
            f"policy {present.name} cannot go on from its state: {type(error).__name__}: {error}"
        ) from error
    return replace(
        state,
        stopped=None,
        evaluator=None,
        timers=[],
        timers_paused_since=None,
        timers_idle=0,
        policy_state=_policy_state(present),
        members=[replace(member, known_to_policy=False) for member in state.members],
    )


def _policy_state(policy: Policy) -> dict[str, object]:
    """Return the policy's state. Raises StateError for whatever a user's code raises or returns instead."""
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


def roster_from(state: CoordinatorState, shift: float) -> Roster:
    roster = Roster(0.0)
    for saved in state.tallies:
        roster.tallies[saved.worker] = Tally(
            saved.committed,
            saved.applied,
            saved.weight,
            saved.dropped,
            saved.samples,
            Counter(dict(saved.staleness)),
            saved.next_batch,
            saved.phase_batch,
            saved.incarnations,
            saved.arrived,
            deque(saved.sessions, maxlen=REMEMBERED_SESSIONS),
            granted=saved.granted,
            granted_at=_shifted(saved.granted_at, shift),
            lost=None if saved.lost is None else (saved.lost[0], saved.lost[1] + shift),
            missed=saved.missed,
        )
        roster.weigh(saved.worker)
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
        recent = table.settled.setdefault(ticket.worker, deque(maxlen=REMEMBERED_TICKETS))
        recent.append(_later(ticket, shift))
    return table


def _later(ticket: Ticket, shift: float) -> Ticket:
    former = _shifted(ticket.former, shift)
    return replace(ticket, granted_at=ticket.granted_at + shift, former=former)
