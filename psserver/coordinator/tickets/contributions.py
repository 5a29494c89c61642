"""What members ask for, and what they bring: the life of their tickets; which times and rates are believed."""

import math
from collections.abc import Mapping
from typing import Final

from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members.roster import Member
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.tickets.table import AHEAD, Ticket
from psserver.coordinator.work.dealer import Dealer
from psserver.coordinator.work.queue import WorkQueue
from psserver.policies import Abandon, Commit, Done
from pswire import protocol
from pswire.decisions import entries
from pswire.protocol import UNTOLD

Reported = tuple[float | None, float | None, float | None]

# Of numbers that the log has in whole microseconds, and of two machines' clocks: each may be slewed by 500 parts per
# million while it is set right. `ps-lab check` allows as much.
ROUNDING: Final = 1e-6
DRIFT: Final = 1e-3


def plausible(times: Reported, granted: float, former: float | None, now: float) -> Reported:
    """Return `times`, but no zero before, if they fit between a ticket's grant and its commit, `now`; else `UNTOLD`.

    What came before the grant must fit behind the grant of the worker's ticket before, at `former`; None where
    there was none. A worker's intervals lie within the coordinator's, so a contribution whose times do not fit
    is taken, and its times are not: nothing is decided by them.
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
    """Why a commit that sets this rate is refused; None where it is not, or sets none.

    `aggregator`: of the job's policy. One that tolerates bad workers must not let one of them set the rate for all.
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
    """The job's rate, `scale` times the one that it began with; None where no commit may set another."""
    refused = rate_refusal(optimizer, 1.0, aggregator) is not None
    return None if refused else began_with(optimizer) * scale


def began_with(optimizer: Mapping[str, object]) -> float:
    """The rate of entry 0 of the log, a number above 0: `rate_refusal` has seen to that."""
    began = optimizer["learning_rate"]
    assert isinstance(began, int | float)
    return float(began)


class Contributions:
    """The inputs of `Coordinator` that are about a member's tickets, once it is known to be a member."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle, dealer: Dealer) -> None:
        self._ledger = ledger
        self._driver = driver
        self._lifecycle = lifecycle
        self._dealer = dealer

    def ready(self, member: Member, holding: int, now: float) -> None:
        """It asks for a ticket after `holding` (0: it holds none)."""
        ledger = self._ledger
        opened = ledger.tickets.open_of(member.worker)
        if ledger.stopped is not None:
            ledger.notify(member, ledger.stop_notice(member))
        elif opened and opened[-1].number > holding:
            # Said again after a reconnection that the grant did not survive, or crossed it on the way.
            ledger.notify_grant(member, opened[-1])
        elif opened and not (self._driver.ahead and member.known_to_policy and len(opened) < AHEAD):
            pass
        elif member.state == "done" and self._lifecycle.phase_ends:
            pass  # it hears of the end soon
        elif member.state == "done" and ledger.resting and member.worker not in ledger.roster.prepared:
            ledger.notify(member, ledger.phase_notice())
        elif member.state == "done":
            stands_by = ledger.work is not None and member.worker in ledger.work.standby
            if not holding and not stands_by:
                ledger.refuse(member, f"{member.worker} said ready after done: expected nothing more from it")
        elif member.requested is None:
            self._request(member, now)

    def _request(self, member: Member, now: float) -> None:
        ledger = self._ledger
        if not self._dealer.promise(member, now):
            return
        member.requested = ledger.tickets.allocate()
        ledger.rest(member, now)
        if not ledger.started:
            ledger.roster.prepared.add(member.worker)
        if not ledger.initialised:
            self._lifecycle.offer_initialisation(now)
        elif not ledger.started:
            self._lifecycle.start_when_complete(now)
        else:
            self._driver.request(member, now)
        self._driver.watch(now)

    def commit(
        self, member: Member, commit: protocol.Commit, ordinary: bool, norm: float, now: float
    ) -> None:
        """The payload of a ticket is on every shard."""
        ledger, number = self._ledger, commit.ticket
        ticket = ledger.own(member, number, "commit")
        if ticket is not None:
            if ticket.state != "open":
                ledger.notify(member, ticket.fate or protocol.Disposition(number, "pending"))
            elif ticket.initialise:
                ticket.ordinary = ordinary
                self._lifecycle.install(member, ticket, now)
            else:
                refusal = rate_refusal(ledger.terms.optimizer, commit.learning_rate, self._driver.aggregator)
                if refusal is not None:
                    ledger.refuse(member, refusal, number)
                    return
                ticket.ordinary = ordinary
                self._contribute(member, ticket, commit, norm, now)
            if commit.ready and member.requested is None and member.state != "done":
                self.ready(member, number, now)
                return
        self._driver.watch(now)

    def _contribute(
        self, member: Member, ticket: Ticket, commit: protocol.Commit, norm: float, now: float
    ) -> None:
        ledger, entry = self._ledger, _entry(ticket, commit, norm, now)
        ledger.tickets.commit(ticket)
        ticket.samples, ticket.loss = entry.samples, entry.loss
        took, usual = now - ticket.granted_at, ledger.usual_step
        ledger.usual_step = took if usual is None else 0.9 * usual + 0.1 * took
        self._count(member, entry)
        ledger.record(entry, now)
        if entry.ends and ledger.work is not None and ticket.part is not None:
            ledger.work.end(member.worker, ticket.part)
        if commit.learning_rate is not None:
            self._set_rate(member, commit.learning_rate, now)
        if member.requested is not None:
            ledger.rest(member, now)
        # The time as the log has it, which is written in whole microseconds.
        t = round(now - ledger.began, 6)
        event = Commit(entry.worker, entry.ticket, entry.samples, entry.loss, entry.norm, t)
        self._driver.decide(event, now)
        if ticket.fate is None:
            ledger.notify(member, protocol.Disposition(ticket.number, "pending"))

    def _set_rate(self, member: Member, rate: float, now: float) -> None:
        """Before the policy hears of the commit, so that an update which it makes has the rate already."""
        ledger = self._ledger
        scale = rate / began_with(ledger.terms.optimizer)
        if scale != ledger.lr_scale:
            ledger.lr_scale = scale
            ledger.record(entries.Rate(member.worker, rate, scale), now)

    def _count(self, member: Member, entry: entries.Commit) -> None:
        tally = self._ledger.roster.tally(entry.worker)
        if member.used:
            # Beside those it had committed, the one that was under way is lost.
            tally.miss(min(entry.batch, member.used + 1) if entry.samples else member.used)
            member.used = 0
        tally.committed += 1
        tally.samples += entry.samples
        tally.use(entry.batch, self._driver.batches)
        if math.isfinite(entry.loss):
            before = self._ledger.loss
            self._ledger.loss = entry.loss if before is None else 0.9 * before + 0.1 * entry.loss

    def abandon(self, member: Member, number: int, reason: str, now: float, *, ends: bool = False) -> None:
        """It will not use the ticket. `ends`: because its work unit had ended before."""
        ticket = self._ledger.own(member, number, "abandon")
        if ticket is not None and ticket.state == "open":
            self._give_up(member, ticket, reason, now, ends=ends and ticket.part is not None)
        self._driver.watch(now)

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
        """`fault`: the ticket's work may be why. Otherwise its worker goes."""
        ledger = self._ledger
        skipped = False
        if fault:
            skipped = ledger.work is not None and self._lose(ledger.work, member, ticket, ends)
        else:
            ledger.deal_again(ticket)
        ledger.record(entries.Abandon(member.worker, ticket.number, reason, skipped, ends), now)
        ledger.settle(ticket, "abandon", protocol.Disposition(ticket.number, "dropped", reason=reason))
        ledger.rest(member, now)
        if ticket.initialise:
            self._lifecycle.offer_initialisation(now)
        else:
            self._driver.decide(Abandon(member.worker, ticket.number, reason), now)

    def _lose(self, queue: WorkQueue, member: Member, ticket: Ticket, ends: bool) -> bool:
        """What the ticket took of a work unit is dealt again; not if the unit had `ends`. True: it is skipped."""
        part = ticket.part
        if part is None:
            return False
        if ends:
            queue.void()
            queue.end(member.worker, part)
            return False
        return queue.lose(part, self._ledger.version, dropped=False)

    def _vote(self, member: Member, ends: str, now: float) -> None:
        """End the job for all: rank 0 may, or more members than the aggregator tolerates to be dishonest.

        Also when it is the last worker, whose being done would end the job as well.
        """
        ledger = self._ledger
        if ledger.resting:
            return  # of a phase that has not begun it ends its own part only
        member.ends = ends
        here = ledger.roster.here()
        votes = sum(bool(other.ends) for other in here)
        if member.rank != 0 and votes <= self._driver.policy.tensors.tolerated(len(here)):
            return
        said = f"{member.worker} ended the job: {ends}"
        if ledger.version and member.stays:
            self._lifecycle.end_phase(said, now)
        elif ledger.version:
            ledger.stop(said, now, success=True, cause="done")
        else:
            reason = f"{said}; nothing was trained: there is no model"
            ledger.stop(reason, now, success=False, cause="empty")

    def done(self, member: Member, now: float, ends: str = "") -> None:
        """It has no more data, and gives up what it holds. `ends`: why the job is to end for all, where it is."""
        ledger = self._ledger
        if ledger.work is not None:
            ledger.work.release(member.worker)
        for ticket in ledger.tickets.open_of(member.worker):
            self._give_up(member, ticket, "done", now, fault=False)
        if ledger.stopped is not None:
            ledger.notify(member, ledger.stop_notice(member))
        elif member.state != "done":
            self._retire(member, now, ends)
        self._driver.watch(now)

    def _retire(self, member: Member, now: float, ends: str) -> None:
        ledger = self._ledger
        member.enter("done", now)
        member.requested = None
        ledger.roster.tally(member.worker).miss(member.used)
        ledger.roster.prepared.add(member.worker)
        ledger.record(entries.Done(member.worker), now)
        if member.known_to_policy:
            self._driver.decide(Done(member.worker), now)
        else:
            self._lifecycle.start_when_complete(now)
        if ends:
            self._vote(member, ends, now)
        self._lifecycle.finish_when_done(now)


def _entry(ticket: Ticket, commit: protocol.Commit, norm: float, now: float) -> entries.Commit:
    times = plausible(commit.times or protocol.UNTOLD, ticket.granted_at, ticket.former, now)
    ends = commit.unit_ends and ticket.part is not None
    told = (commit.batch, commit.samples, commit.loss, norm)
    return entries.Commit(ticket.worker, ticket.number, *told, *times, ends, commit.residual)
