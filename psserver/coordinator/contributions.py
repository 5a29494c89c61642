"""Requests and commits of members, and which of the times and rates in them are accepted."""

import math
from collections.abc import Mapping
from typing import Final

from psserver.coordinator.dealer import Dealer
from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.roster import Member
from psserver.coordinator.tickets import AHEAD, Ticket
from psserver.coordinator.units import TicketPart
from psserver.coordinator.work import WorkQueue
from psserver.decisions import entries
from psserver.policies import Abandon, Commit, Done
from pswire import protocol
from pswire.protocol import UNTOLD

Reported = tuple[float | None, float | None, float | None]

# Tolerances: rounding to the log's whole microseconds, and drift of two machines' clocks, each slewed by up to
# 500 parts per million. `ps-lab check` uses the same.
ROUNDING: Final = 1e-6
DRIFT: Final = 1e-3


def plausible(times: Reported, granted: float, former: float | None, now: float) -> Reported:
    """Return `times`, but no zero before, if they fit between a ticket's grant and its commit, `now`; else `UNTOLD`.

    The time before the grant must fit after the grant of the worker's former ticket, at `former`; None if there was
    none. A worker's intervals lie within the coordinator's. A contribution whose times do not fit still counts, but
    its times are discarded; no decision depends on them.
    """
    pull, compute, before = times
    if pull is None or compute is None:
        return UNTOLD
    held = pull + compute
    if not held <= _most(now - granted):
        return UNTOLD
    if former is not None and not held + (before or 0.0) <= _most(now - former):
        return UNTOLD
    return pull, compute, before or None


def _most(seconds: float) -> float:
    return seconds * (1 + DRIFT) + ROUNDING


def rate_refusal(optimizer: Mapping[str, object], rate: float | None, aggregator: str) -> str | None:
    """Return why a commit that sets this rate is refused; None if it is accepted or sets none.

    `aggregator`: that of the policy. If it tolerates bad workers, a single worker must not set the rate for all.
    """
    if rate is None:
        return None
    if aggregator != "mean":
        return (
            f"learning_rate {rate:g} in a commit: under {aggregator}, which tolerates bad workers, no worker sets the "
            "rate for all; expected none: a schedule of the optimizer changes it"
        )
    began = optimizer.get("learning_rate")
    if isinstance(began, Mapping):
        return (
            f"learning_rate {rate:g} in a commit: this job's rate follows the schedule "
            f"{began.get('schedule')!r}, so expected none"
        )
    if not isinstance(began, int | float) or not began > 0:
        return (
            f"learning_rate {rate:g} in a commit: the job began with {began}, which no factor makes another; "
            "expected none"
        )
    return None


def present_rate(optimizer: Mapping[str, object], scale: float, aggregator: str) -> float | None:
    """Return the present rate, `scale` times the initial one; None if no commit may change it."""
    refused = rate_refusal(optimizer, 1.0, aggregator) is not None
    return None if refused else initial_rate(optimizer) * scale


def initial_rate(optimizer: Mapping[str, object]) -> float:
    """Return the rate that the optimizer begins with, above 0 because `rate_refusal` checked it."""
    began = optimizer["learning_rate"]
    assert isinstance(began, int | float)
    return float(began)


class Contributions:
    """Handles those inputs of `Coordinator` that concern a member's tickets."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle, dealer: Dealer) -> None:
        self._ledger, self._job = ledger, ledger.job
        self._driver = driver
        self._lifecycle = lifecycle
        self._dealer = dealer

    def ready(self, member: Member, holding: int, now: float) -> None:
        """Handle a request for the ticket after `holding` (0: it holds none)."""
        ledger = self._ledger
        opened = self._job.tickets.open_of(member.worker)
        if self._job.stopped is not None:
            ledger.notify(member, ledger.stop_notice(member))
        elif opened and opened[-1].number > holding:
            # A repeated request: the grant was lost with a connection, or crossed this message.
            ledger.notify_grant(member, opened[-1])
        elif opened and not (self._driver.policy.ahead and member.known_to_policy and len(opened) < AHEAD):
            pass
        elif member.state == "done" and self._job.phase_ends:
            pass  # the notice of the end follows
        elif member.state == "done" and self._job.resting and member.worker not in self._job.roster.prepared:
            ledger.notify(member, ledger.phase_notice())
        elif member.state == "done":
            stands_by = self._job.work is not None and member.worker in self._job.work.standby
            if not holding and not stands_by:
                ledger.refuse(member, f"{member.worker} said ready after done: expected nothing more from it")
        elif member.requested is None:
            self._request(member, now)

    def _request(self, member: Member, now: float) -> None:
        ledger = self._ledger
        if not self._dealer.promise(member, now):
            return
        member.requested = self._job.tickets.allocate()
        ledger.rest(member, now)
        if not self._job.started:
            self._job.roster.prepared.add(member.worker)
        if not self._job.initialised:
            self._lifecycle.offer_initialisation(now)
        elif not self._job.started:
            self._lifecycle.start_when_complete(now)
        else:
            self._driver.request(member, now)
        self._driver.check_deadlock(now)

    def commit(self, member: Member, commit: protocol.Commit, norm: float, now: float) -> None:
        """Handle a commit: the ticket's payload is on every shard."""
        ledger, number = self._ledger, commit.ticket
        ticket = ledger.own(member, number, "commit")
        if ticket is not None:
            if ticket.state != "open":
                ledger.notify(member, ticket.fate or protocol.Disposition(number, "pending"))
            elif ticket.initialise:
                self._lifecycle.install(member, ticket, now)
            else:
                refusal = member.residual_refusal(commit.residual) or rate_refusal(
                    self._job.proposal.optimizer, commit.learning_rate, self._driver.policy.tensors.aggregator
                )
                if refusal is None and commit.unit_ends:
                    refusal = self._end_refusal(ticket, 1)
                if refusal is not None:
                    ledger.refuse(member, refusal, number)
                    return
                self._contribute(member, ticket, commit, norm, now)
            over = self._job.stopped is not None or member.state == "done"
            if commit.ready and (member.requested is None or over):
                self.ready(member, number, now)
                return
        self._driver.check_deadlock(now)

    def _contribute(
        self, member: Member, ticket: Ticket, commit: protocol.Commit, norm: float, now: float
    ) -> None:
        ledger, entry = self._ledger, _entry(ticket, commit, self._ends(member, ticket, commit), norm, now)
        self._job.tickets.commit(ticket)
        ticket.samples, ticket.loss = entry.samples, entry.loss
        if member.remembers:
            member.encoded, member.encoded_dropped = (ticket.number, commit.residual), False
        took, usual = now - ticket.granted_at, self._job.usual_step
        self._job.usual_step = took if usual is None else 0.9 * usual + 0.1 * took
        self._count(member, entry)
        ledger.record(entry, now)
        if commit.learning_rate is not None:
            self._set_rate(member, commit.learning_rate, now)
        if member.requested is not None:
            ledger.rest(member, now)
        t = self._driver.time(now)
        event = Commit(entry.worker, entry.ticket, entry.samples, entry.loss, entry.norm, t)
        self._driver.decide(event, now)
        if ticket.fate is None:
            ledger.notify(member, protocol.Disposition(ticket.number, "pending"))

    # Ends of units

    def _end_refusal(self, ticket: Ticket, more: int) -> str | None:
        """Return why a unit cannot end `more` parts after the first batch of this ticket's part; None if it can."""
        queue, part = self._job.work, ticket.part
        if queue is None or part is None or not queue.parts:
            return None
        expected, got = queue.parts_of(part.unit), part.part + more
        if got == expected:
            return None
        return (
            f"ticket {ticket.number}: the worker says that unit {part.unit} of epoch {part.epoch} ends after {got} of "
            f"its {expected} parts; expected as many as the job's terms say ({queue.terms})"
        )

    def _ends(self, member: Member, ticket: Ticket, commit: protocol.Commit) -> bool:
        """Whether the unit ends with this commit."""
        queue, part = self._job.work, ticket.part
        if queue is None or part is None:
            return False
        if queue.parts:
            return part.part + 1 == queue.parts_of(part.unit) and (
                commit.unit_ends or queue.parts_of(part.unit) < queue.parts
            )
        if not commit.unit_ends:
            return False
        queue.end(member.worker, part)
        return True

    def _set_rate(self, member: Member, rate: float, now: float) -> None:
        """Set the rate before the policy receives the commit, so that the resulting update uses it."""
        ledger = self._ledger
        scale = rate / initial_rate(self._job.proposal.optimizer)
        if scale != self._job.lr_scale:
            self._job.lr_scale = scale
            ledger.record(entries.Rate(member.worker, rate, scale), now)

    def _count(self, member: Member, entry: entries.Commit) -> None:
        tally = self._job.roster.tally(entry.worker)
        if member.used:
            # Besides the batches that it had committed, the one under way is lost.
            tally.miss(min(entry.batch, member.used + 1) if entry.samples else member.used)
            member.used = 0
        tally.committed += 1
        tally.samples += entry.samples
        tally.use(entry.batch, self._driver.policy.local_rule.batches)
        if math.isfinite(entry.loss):
            before = self._job.loss
            self._job.loss = entry.loss if before is None else 0.9 * before + 0.1 * entry.loss

    def abandon(self, member: Member, number: int, reason: str, now: float, *, ends: bool = False) -> None:
        """Handle an abandon. `ends`: the worker found that the work unit had already ended."""
        ticket = self._ledger.own(member, number, "abandon")
        if ticket is not None and ticket.state == "open":
            refusal = self._end_refusal(ticket, 0) if ends else None
            if refusal is not None:
                self._ledger.refuse(member, refusal, number)
                return
            self._give_up(member, ticket, reason, now, ends=ends and ticket.part is not None)
        self._driver.check_deadlock(now)

    def _give_up(
        self,
        member: Member,
        ticket: Ticket,
        reason: str,
        now: float,
        *,
        ends: bool = False,
        fault: bool = True,
    ) -> None:
        """Abandon an open ticket. `fault`: its work may be the cause; otherwise the worker is leaving."""
        ledger = self._ledger
        skipped = False
        if fault and self._job.work is not None and ticket.part is not None:
            skipped = self._lose(self._job.work, member, ticket.part, ends)
        elif not fault:
            ledger.deal_again(ticket)
        ledger.record(entries.Abandon(member.worker, ticket.number, reason, skipped, ends), now)
        ledger.settle(ticket, "abandon", protocol.Disposition(ticket.number, "dropped", reason=reason))
        ledger.rest(member, now)
        if ticket.initialise:
            self._lifecycle.offer_initialisation(now)
        else:
            event = Abandon(member.worker, ticket.number, reason, self._driver.time(now))
            self._driver.decide(event, now)

    def _lose(self, queue: WorkQueue, member: Member, part: TicketPart, ends: bool) -> bool:
        """Return the part to the queue, unless the unit `ends`. Returns whether it is skipped instead."""
        if not ends:
            return queue.lose(part, self._job.version, dropped=False)
        queue.void()
        queue.end(member.worker, part)
        return False

    def _vote(self, member: Member, ends: str, now: float) -> None:
        """End the job for all if more members ask than the aggregator tolerates to be dishonest.

        This also applies to the last worker, whose Done would end the job anyway.
        """
        ledger = self._ledger
        if self._job.resting:
            return  # before a phase begins, a member can end only its own part
        member.ends = ends
        here = self._job.roster.here()
        votes = sum(bool(other.ends) for other in here)
        if votes <= self._driver.policy.tensors.tolerated(len(here)):
            return
        reason = f"{member.worker} ended the job: {ends}"
        if self._job.version and member.stays:
            self._lifecycle.end_phase(reason, now)
        elif self._job.version:
            ledger.stop(reason, now, success=True, cause="done")
        else:
            reason = f"{reason}; nothing was trained: there is no model"
            ledger.stop(reason, now, success=False, cause="empty")

    def done(self, member: Member, now: float, ends: str = "") -> None:
        """Handle a Done: the worker's data has ended, and it abandons its tickets. `ends`: why to end the job."""
        ledger = self._ledger
        if self._job.work is not None:
            self._job.work.release(member.worker)
        for ticket in self._job.tickets.open_of(member.worker):
            self._give_up(member, ticket, "done", now, fault=False)
        if self._job.stopped is not None:
            ledger.notify(member, ledger.stop_notice(member))
        elif member.state != "done":
            self._retire(member, now, ends)
        self._driver.check_deadlock(now)

    def _retire(self, member: Member, now: float, ends: str) -> None:
        ledger = self._ledger
        member.enter("done", now)
        member.requested = None
        self._job.roster.tally(member.worker).miss(member.used)
        self._job.roster.prepared.add(member.worker)
        ledger.record(entries.Done(member.worker), now)
        if member.known_to_policy:
            self._driver.decide(Done(member.worker, self._driver.time(now)), now)
        else:
            self._lifecycle.start_when_complete(now)
        if ends:
            self._vote(member, ends, now)
        self._lifecycle.finish_when_done(now)


def _entry(ticket: Ticket, commit: protocol.Commit, ends: bool, norm: float, now: float) -> entries.Commit:
    times = plausible(commit.times or protocol.UNTOLD, ticket.granted_at, ticket.former, now)
    figures = (commit.batch, commit.samples, commit.loss, norm)
    return entries.Commit(ticket.worker, ticket.number, *figures, *times, ends, commit.residual)
