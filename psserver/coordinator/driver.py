"""Sends events to the policy and turns its decisions into entries, notices and facts."""

import math
from collections.abc import Mapping, Sequence

from psserver.coordinator.changes import PLAN
from psserver.coordinator.checks import check_apply, check_fold, check_grant, check_list, check_reason
from psserver.coordinator.inputs import ChangeAsked
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.roster import REMEMBERED_TICKETS, Member, named
from psserver.coordinator.state import PresentPolicy
from psserver.coordinator.tickets import Ticket, TicketError
from psserver.coordinator.timers import IDLE_LIMIT
from psserver.coordinator.work import WorkQueue
from psserver.decisions import entries
from psserver.policies import (
    Apply,
    Cancel,
    ClearTimer,
    Decision,
    Drop,
    Event,
    Fold,
    Grant,
    Join,
    Part,
    Policy,
    PolicyError,
    Ready,
    SetTimer,
    Stop,
    Timer,
    microseconds,
)
from psserver.policies.policy import config_of
from psserver.policies.succession import check_reach, successor
from psserver.records import to_plain
from pswire import protocol

# The greatest factor of the learning rate that a change may set.
MOST_RATE = 1e6


class PolicyDriver:
    """Owns the policy and the folded part of the coming update; changes the ledger as the policy decides."""

    def __init__(self, present: Policy, ledger: Ledger) -> None:
        """`present`: the policy that the job began with, or the one that has taken over since."""
        self.policy = present
        self._ledger, self._job = ledger, ledger.job
        # Read once: what a policy declares of tensors is constant, and the same for all that take over.
        self._tensors, self._lists = present.tensors, present.tensors.lists
        # The last time that was rounded for the log, and the result.
        self._rounded = (math.nan, 0.0)

    # Events

    def introduce(self, member: Member, now: float) -> None:
        """Send the policy a member's Join, once."""
        member.known_to_policy = True
        self.decide(Join(member.worker, member.rank, self.time(now)), now)

    def request(self, member: Member, now: float) -> None:
        """Send the policy a member's request."""
        if not member.known_to_policy:
            self.introduce(member, now)
        if member.requested is not None and self._job.stopped is None:
            self.decide(Ready(member.worker, member.requested, self.time(now)), now)

    def time(self, now: float) -> float:
        """Return `now` as the log has it: seconds since the job began, in whole microseconds."""
        # An input often has several events at one time, and rounding is slow.
        if now != self._rounded[0]:
            self._rounded = now, round(now, 6)
        return self._rounded[1]

    def decide(self, event: Event, now: float) -> None:
        """Send the policy one event and carry out what it decides.

        A policy may be a user's code: any exception, and any decision that breaks the contract, ends the job with a
        reason that names it.
        """
        if self._job.stopped is not None:
            return
        try:
            decisions = self.policy.step(event)
            if not isinstance(decisions, list):
                raise PolicyError(
                    f"its step returned {decisions!r}; expected a list of decisions, [] for none"
                )
            for decision in decisions:
                self._execute(decision, now)
        except (Exception, SystemExit) as error:  # a policy must not end the server silently
            # PolicyError and TicketError explain a broken contract; any other is the policy's own.
            self._failed(f"on {event}", error, now)
        self.step_over(now)

    def _failed(self, where: str, error: BaseException, now: float) -> None:
        kind = "" if isinstance(error, PolicyError | TicketError) else f"{type(error).__name__}: "
        reason = f"policy {self.policy.name} failed {where}: {kind}{error}"
        self._ledger.stop(reason, now, success=False, cause="policy")

    def check_deadlock(self, now: float) -> None:
        """Stop the job if all workers wait for the policy and no event can release them."""
        if self._job.timers.pending:
            return
        ledger = self._ledger
        # A worker that holds a ticket does not wait. This avoids a scan of all members at each message.
        if self._job.tickets.opened or not self._job.trains:
            return
        if waiting := self._all_waiting():
            reason = f"policy {self.policy.name} deadlocked: {waiting} wait and no ticket is open"
            ledger.stop(reason, now, success=False, cause="policy")

    def _all_waiting(self) -> str:
        """Return the names of the active members if all of them wait for the policy; else an empty text."""
        present = [m for m in self._job.roster.present.values() if m.state != "done"]
        if all(m.requested is not None and m.known_to_policy and m.absent_since is None for m in present):
            return named([m.worker for m in present])
        return ""

    # Timers

    def fire(self, now: float) -> None:
        """Send the policy every timer that is due, up to the stop of the job. Called before each input."""
        t, ledger = self.time(now), self._ledger
        while self._job.stopped is None and (found := self._job.timers.take_due(microseconds(t))) is not None:
            tag, at = found
            ledger.record(entries.Timer(tag, at), now)
            self.decide(Timer(tag, t), now)
            self._check_livelock(tag, now)
            self.check_deadlock(now)

    def _check_livelock(self, tag: str, now: float) -> None:
        """Stop the job if timers fire again and again while all workers wait."""
        ledger, timers = self._ledger, self._job.timers
        waiting = "" if self._job.tickets.opened else self._all_waiting()
        timers.idle = timers.idle + 1 if waiting else 0
        if timers.idle >= IDLE_LIMIT:
            reason = (
                f"policy {self.policy.name} is in a livelock: {IDLE_LIMIT} timers fired while {waiting} wait and no "
                f"ticket is open, the last one {tag!r}; expected one of them to release a worker"
            )
            ledger.stop(reason, now, success=False, cause="policy")

    def pause_timers(self, now: float) -> None:
        """Let job time stand still before the job starts and while no worker is present. Called after each input."""
        paused = not self._job.started or not self._job.roster.present
        self._job.timers.pause(paused, microseconds(self.time(now)))

    # Changes of the policy

    def named(self, name: str, knobs: Mapping[str, object]) -> Policy:
        """Build the policy that is to take over. Raises PolicyError if it cannot."""
        terms = self._ledger.terms
        return successor(self.policy, name, knobs, terms.workers, terms.servers)

    def change(self, change: ChangeAsked, now: float) -> None:
        """Let the change take effect once no contribution waits for an update.

        If another change waits already, this one takes its place at once: the contributions that wait are dropped.
        Raises PolicyError, with nothing changed.
        """
        changes = self._job.changes
        self._check_change(self.named(change.name, change.knobs), change.rate)
        replaces, changes.waiting = changes.waiting is not None, change
        if not replaces:
            return
        for ticket in self._job.tickets.in_state("pending"):
            self._ledger.drop(ticket, entries.REPLACED, now)
        self._job.folded.clear()
        self._job.timers.clear_all()
        self._settle(now)
        self._take_over(now)

    def _check_change(self, policy: Policy, rate: float | None) -> None:
        """Raise PolicyError if `policy` cannot be the next one now, or with that factor of the learning rate."""
        if rate is not None and not 0 < rate <= MOST_RATE:
            raise PolicyError(
                f"expected a factor of the learning rate above 0 and up to {MOST_RATE:g}, got {rate:g}"
            )
        if not self._job.trains:
            raise PolicyError(
                "expected a job that trains, got one that has stopped, has not begun or gathers its workers again: "
                "change the policy once it trains"
            )
        check_reach(policy, self._ledger.terms.workers, len(self._job.roster.here()))

    def step_over(self, now: float) -> None:
        """After a step: let a change take effect that waits or is due, and note the end of an overlap."""
        changes, plan = self._job.changes, self._ledger.terms.plan
        if changes.idle(plan) or self._job.stopped is not None:
            return
        self._settle(now)
        if not self._job.started or not self.policy.rests:
            return
        if (
            changes.waiting is None
            and changes.planned < len(plan)
            and self._job.version >= plan[changes.planned].versions
        ):
            planned = plan[changes.planned]
            changes.planned += 1
            changes.waiting = ChangeAsked(
                planned.name, to_plain(dict(planned.knobs)), PLAN, planned.why, planned.rate
            )
            self._take_over(now, f"at version {planned.versions}")
        elif changes.waiting is not None:
            self._take_over(now)

    def _take_over(self, now: float, place: str = "at the change") -> None:
        """Let the policy of the change that waits decide from here on. `place`: for the reason if it cannot."""
        change, self._job.changes.waiting = self._job.changes.waiting, None
        assert change is not None
        try:
            policy = self.named(change.name, change.knobs)
        except PolicyError as error:
            self._failed(place, error, now)
            return
        self._succeed(policy, change, now)

    def _succeed(self, policy: Policy, change: ChangeAsked, now: float) -> None:
        """Let the policy that the change names decide from here on, at once for waiting workers."""
        ledger, job, changes = self._ledger, self._job, self._job.changes
        former = config_of(self.policy)
        policy.succeed(self.policy, self.time(now))
        self.policy = policy
        job.policy = PresentPolicy(policy.name, to_plain(policy.knobs))
        if change.rate is not None:
            changes.rate = change.rate
        entry = entries.Policy(
            *(config_of(policy), former, job.version, change.by, change.why),
            rate=None if changes.rate == 1 else changes.rate,
        )
        ledger.record(entry, now)
        changes.began_with = changes.began_with or to_plain(former)
        changes.overlap = {ticket.number for ticket in job.tickets.in_state("open")}
        changes.unsettled = True
        if change.by != PLAN:
            # After a rollback a plan is followed again. What a person has asked for is to survive one.
            ledger.save_soon()
        self._settle(now)
        waiting = [m for m in job.roster.by_rank() if m.requested is not None and m.known_to_policy]
        if waiting:
            self.request(waiting[0], now)

    def _settle(self, now: float) -> None:
        """Note the end of the overlap, once no ticket is left from before the newest change."""
        changes, job = self._job.changes, self._job
        if changes.unsettled and not (changes.overlap & job.tickets.live.keys()):
            changes.unsettled = False
            changes.overlap.clear()
            self._ledger.record(entries.Settled(job.version), now)

    def describe_change(self) -> str:
        """Say what changes of the policy are under way or to come; empty if none is."""
        changes, job, plan = self._job.changes, self._job, self._ledger.terms.plan
        if changes.idle(plan) or job.stopped is not None:
            return ""
        if changes.waiting is not None:
            return (
                f"policy {changes.waiting.name} takes over behind version {job.version + 1}, "
                f"by {changes.waiting.by}"
            )
        if changes.unsettled:
            left = len(changes.overlap & job.tickets.live.keys())
            return f"policy {self.policy.name} has taken over; tickets from before it: {left}"
        if changes.planned >= len(plan):
            return ""
        planned = plan[changes.planned]
        return f"policy {planned.name} takes over at version {planned.versions}, by plan"

    # Decisions

    def _execute(self, decision: Decision, now: float) -> None:
        ledger = self._ledger
        if self._job.stopped is not None:
            return
        match decision:
            case Grant() | Cancel() if (
                not self._job.started and decision.ticket not in self._job.tickets.live
            ):
                # The job resumes in new processes and all members leave; the policy receives this one's Leave next.
                pass
            case Grant():
                check_grant(decision)
                self._grant(decision, now)
            case Fold():
                self._fold(decision, now)
            case Apply():
                self._apply(decision, now)
            case Drop(number, reason):
                check_reason(decision)
                ticket = self._job.tickets.allowing("drop", number)
                if number in self._job.folded:
                    raise PolicyError(f"drop of ticket {number}, which is folded: expected it in an apply")
                ledger.drop(ticket, reason, now)
            case Cancel(number, reason):
                check_reason(decision)
                ledger.cancel(self._job.tickets.allowing("cancel", number), reason, now)
            case SetTimer():
                self._job.timers.set(decision, microseconds(self.time(now)))
            case ClearTimer():
                self._job.timers.clear(decision)
            case Stop(reason):
                check_reason(decision)
                ledger.stop(reason, now, success=True, cause="policy")
            case _:
                raise PolicyError(
                    f"expected Grant, Fold, Apply, Drop, Cancel, SetTimer, ClearTimer or Stop, got {decision!r}"
                )

    def _at_work(self, work: WorkQueue) -> list[str]:
        """Return the workers that will need a work unit, by rank, with those on standby when an epoch begins."""
        due = work.standby if work.between_epochs else ()
        present = self._job.roster.by_rank()
        return [m.worker for m in present if m.ever_connected and (m.state != "done" or m.worker in due)]

    def _grant(self, grant: Grant, now: float) -> None:
        ledger = self._ledger
        member = self._job.roster.present.get(grant.worker)
        if member is None or member.requested != grant.ticket:
            raise PolicyError(f"grant of ticket {grant.ticket}, for which {grant.worker} does not wait")
        member.requested = None
        member.enter("computing", now)
        version = self._job.version
        ahead = grant.worker in self._job.tickets.opened
        part = None
        if self._job.work is not None:
            if self.policy.by_rank:
                self._job.work.deal_round(version, self._at_work(self._job.work))
            part = self._job.work.deal(grant.worker)
        dealt = (None, None, None) if part is None else (part.epoch, part.unit, part.part)
        entry = entries.Grant(grant.worker, grant.ticket, version, grant.turn, ahead, *dealt)
        index = ledger.record(entry, now)
        tally = self._job.roster.tally(grant.worker)
        tally.granted += 1
        if tally.granted <= REMEMBERED_TICKETS:
            self._job.roster.weigh(grant.worker)
        former, tally.granted_at = tally.granted_at, now
        who = (member.worker, member.incarnation)
        ticket = Ticket(grant.ticket, *who, version, now, index, former=former, part=part)
        self._job.tickets.open(ticket)
        ledger.notify(member, protocol.Grant(grant.ticket, version, index, part=part))

    def _fold(self, fold: Fold, now: float) -> None:
        number = fold.ticket
        self._job.tickets.allowing("fold", number)
        part = Part(number, fold.factor, fold.compensation)
        check_fold(part, self._job.folded, self._tensors)
        if self._tensors.compensator is not None:
            # An element that is kept back has its memory as before the update: all folds of one are part of the apply.
            return
        self._ledger.record(entries.Fold(number, fold.factor, fold.compensation), now)
        self._job.folded[number] = part

    def _apply(self, apply: Apply, now: float) -> None:
        check_apply(apply, self._job.folded.values(), self._tensors)
        tickets = [self._job.tickets.allowing("apply", part.ticket) for part in apply.parts]
        if self._lists:
            check_list(tickets, self._tensors)
        version, scale = self._job.version, apply.scale
        # A list is faster than a generator, and an update of async has one part.
        listed = [
            entries.Part(
                ticket.number,
                ticket.worker,
                ticket.base,
                version - ticket.base,
                part.factor * scale,
                part.factor,
                part.compensation,
            )
            for part, ticket in zip(apply.parts, tickets, strict=True)
        ]
        rate = apply.lr_scale * self._job.lr_scale * self._job.changes.rate
        update = entries.Apply(version + 1, scale, rate, tuple(listed))
        self._make(update, tickets, now)

    def _make(self, update: entries.Apply, tickets: Sequence[Ticket], now: float) -> None:
        """Record the update, which makes the next version."""
        ledger, version = self._ledger, update.version
        ledger.record(update, now)
        # Only after it is recorded: every version is in the log.
        self._job.folded.clear()
        self._job.kept_back.made(version, [part.worker for part in update.parts])
        ledger.made(version, now)
        for applied, ticket in zip(update.parts, tickets, strict=True):
            tally = self._job.roster.tally(applied.worker)
            tally.applied += 1
            tally.weight += applied.weight
            counts = tally.staleness
            # With many workers most keys are new, for which get is faster than Counter's own way.
            times = counts.get(applied.staleness, 0)
            counts[applied.staleness] = times + 1
            if not times:
                self._job.roster.weigh(applied.worker)
            fate = protocol.Disposition(ticket.number, "applied", version, applied.staleness, applied.weight)
            ledger.settle(ticket, "apply", fate)
            if self._job.work is not None and ticket.part is not None:
                self._job.work.count()
        if ledger.terms.versions and version >= ledger.terms.versions:
            ledger.stop(f"version {version} is reached", now, success=True, cause="versions")
