"""Time limits for what the job waits for its members to do, so that no idle member blocks it for ever."""

from collections.abc import Iterator
from dataclasses import dataclass

from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.roster import Member
from psserver.policies import Policy, Waiting

# Default limit of a ticket that others wait for, in usual steps.
USUAL_STEPS = 20


@dataclass(frozen=True, slots=True)
class Wait:
    """The job has waited for `member` to do `what` since `since`; it waits at most `limit` seconds."""

    member: Member
    what: str
    since: float
    limit: float

    def sentence(self, now: float) -> str:
        """Return the wait as a sentence."""
        since = now - self.since
        times = f"since {since:.1f} s, at most {round(self.limit, 1):g} s"
        return f"waiting for {self.member.worker} to {self.what} ({times})"


def waits(ledger: Ledger, driver: PolicyDriver, now: float) -> Iterator[Wait]:
    """Yield all waits with a limit, by rank."""
    if ledger.job.stopped is not None:
        yield from _leaving(ledger)
        return
    # Computed once, and only if a ticket is old enough to matter.
    blockers: set[str] | None = None
    for member in ledger.job.roster.by_rank():
        for ticket in ledger.job.tickets.open_of(member.worker)[:1]:
            if ticket.initialise:
                most = ledger.terms.initialise_limit + ledger.job.proposal.transfer
                yield Wait(member, "bring the initial values", ticket.granted_at, most)
                continue
            limit, asked = _ticket_limit(ledger)
            if limit is None or (not asked and now - ticket.granted_at < limit / 2):
                continue
            if not asked and blockers is None:
                blockers = _blockers(ledger, driver)
            if asked or (blockers is not None and member.worker in blockers):
                yield Wait(member, f"commit ticket {ticket.number}", ticket.granted_at, limit)
        if ledger.terms.idle_timeout and _silent(ledger, member):
            what = "begin another fit, or leave" if ledger.job.resting else "ask for work"
            yield Wait(member, what, member.since, ledger.terms.idle_timeout)


def _leaving(ledger: Ledger) -> Iterator[Wait]:
    assert ledger.job.stopped is not None
    for member in ledger.job.roster.by_rank():
        if member.absent_since is not None:
            continue  # it has the usual grace period
        if member.worker == ledger.job.evaluator:
            what = "evaluate the last version and leave"
            limit = ledger.terms.report_limit + ledger.job.proposal.transfer
        else:
            what, limit = "leave", ledger.terms.leave_limit
        yield Wait(member, what, ledger.job.stopped.at, limit)


def _ticket_limit(ledger: Ledger) -> tuple[float | None, bool]:
    """Return the limit in seconds, if any, and whether it was configured."""
    timeout = ledger.terms.ticket_timeout
    if timeout is not None:
        return (timeout or None), True
    if ledger.job.usual_step is None:
        return None, False
    least = ledger.terms.least_ticket_limit + 2 * ledger.job.proposal.transfer
    return max(least, USUAL_STEPS * ledger.job.usual_step), False


def _blockers(ledger: Ledger, driver: PolicyDriver) -> set[str]:
    """Return the workers that can release a waiting one, according to the policy."""
    found: set[str] = set()
    for member in ledger.job.roster.present.values():
        if member.state == "waiting" and member.known_to_policy:
            found.update(explained(driver.policy, member.worker).releasers)
    return found


def explained(policy: Policy, worker: str) -> Waiting:
    """Return why a worker waits, according to the policy.

    A user's `explain` must not end the server, which asks at every tick: what it raises, and whatever else it returns,
    becomes the event.
    """
    try:
        waiting = policy.explain(worker)
    except (Exception, SystemExit) as error:
        return Waiting(f"the policy, whose explain failed with {type(error).__name__}: {error}")
    if waiting is None:
        return Waiting("the policy, which gives no reason")
    if (
        isinstance(waiting, Waiting)
        and isinstance(waiting.event, str)
        and isinstance(waiting.timer, str)
        and isinstance(waiting.releasers, tuple)
        and all(isinstance(name, str) for name in waiting.releasers)
    ):
        return waiting
    expected = "Waiting(event, releasers), a text and a tuple of workers' names, or None"
    return Waiting(f"the policy, whose explain returned {waiting!r}; expected {expected}")


def _silent(ledger: Ledger, member: Member) -> bool:
    """Whether the member is connected, has no work and asks for none, while the start or the end waits for it."""
    if member.absent_since is not None or member.requested is not None:
        return False
    if ledger.job.resting and member.state == "done":
        return member.worker not in ledger.job.roster.prepared
    if member.state != "joined":
        return False
    if not ledger.job.started:
        return bool(ledger.job.roster.prepared)
    others = [m for m in ledger.job.roster.present.values() if m is not member]
    return (
        bool(others) and all(m.state in ("done", "joined") for m in others) and not ledger.job.tickets.opened
    )
