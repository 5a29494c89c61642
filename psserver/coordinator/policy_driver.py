"""How the policy's decisions become entries, notices and facts."""

import math

from psserver.coordinator import entries, outputs
from psserver.coordinator.checks import check_apply, check_fold, check_list
from psserver.coordinator.entries import AppliedPart, Entry
from psserver.coordinator.members import Member, Roster
from psserver.coordinator.outputs import DispositionNotice, Notice, Output, Record, StopNotice, Tell
from psserver.coordinator.terms import JobTerms, Stopped
from psserver.coordinator.tickets import Ticket, TicketTable
from psserver.policies import (
    Apply,
    Cancel,
    Decision,
    Drop,
    Event,
    Fold,
    Grant,
    Part,
    Policy,
    PolicyError,
    Stop,
)


class PolicyDriver:
    """State of a job, and the primitive moves on it."""

    def __init__(self, terms: JobTerms, policy: Policy, now: float) -> None:
        self.terms = terms
        self.policy = policy
        # Asked once: a policy's declaration is constant.
        self._tensors, self._lists = policy.tensors, policy.tensors.lists
        self.roster = Roster()
        self.tickets = TicketTable()
        self.version = 0
        # Whether the policy knows what to make of a Ready from a worker that holds a ticket.
        self._ahead = policy.ahead
        self.initialised = False
        self.started = False
        self.stopped: Stopped | None = None
        # Smoothed loss of recent commits; None before the first.
        self.loss: float | None = None
        self._began = now
        self._index = 0
        self._out: list[Output] = []
        # What is in the shards' open sum, in order.
        self._folded: dict[int, Part] = {}
        self._evaluator: str | None = None
        self._stop_index = 0

    @property
    def entries(self) -> int:
        """Entries of the decision log so far."""
        return self._index

    # Outputs

    def _emit(self) -> list[Output]:
        out, self._out = self._out, []
        return out

    def _record(self, entry: Entry, now: float) -> int:
        index = self._index
        self._out.append(Record(index, now - self._began, entry))
        self._index += 1
        return index

    def _tell(self, member: Member, notice: Notice) -> None:
        self._out.append(Tell(member.worker, member.incarnation, notice))

    def _refuse(self, member: Member, message: str, ticket: int = 0) -> None:
        self._tell(member, outputs.RefusalNotice(message, ticket=ticket))

    def _stranger(self, worker: str, incarnation: int) -> list[Output]:
        notice = outputs.RefusalNotice(self._unknown(worker, incarnation), fatal=True)
        return [Tell(worker, incarnation, notice)]

    def _unknown(self, worker: str, incarnation: int) -> str:
        present = self.roster.present.get(worker)
        now_here = f"; incarnation {present.incarnation} is" if present else ""
        return (
            f"worker {worker!r}, incarnation {incarnation}, is not a member of this job{now_here}; join again"
        )

    # Lookups

    def _member(self, worker: str, incarnation: int) -> Member | None:
        member = self.roster.present.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def _own(self, member: Member, number: int, verb: str) -> Ticket | None:
        """The member's ticket; otherwise a refusal that names what was expected."""
        ticket = self.tickets.find(number, member.worker)
        if ticket is not None:
            return ticket
        owner = self.tickets.owner(number)
        mine = [str(t.number) for t in self.tickets.open_of(member.worker)]
        expected = f"ticket {' or '.join(mine)}" if mine else "no ticket (none is open)"
        got = f"is {owner}'s" if owner else "is unknown: never granted, or settled long ago"
        self._refuse(
            member, f"{verb} of ticket {number} by {member.worker}: it {got}; expected {expected}", number
        )
        return None

    # Decisions

    def _decide(self, event: Event, now: float) -> None:
        """Ask the policy about one event and carry out what it decides.

        A policy may be anybody's code: whatever it raises, and any decision
        that breaks the contract, ends the job with a sentence that says so.
        """
        if self.stopped is not None:
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
            reason = f"policy {self.policy.name} failed on {event}: {type(error).__name__}: {error}"
            self._stop(reason, now, success=False, cause="policy")

    def _execute(self, decision: Decision, now: float) -> None:
        if self.stopped is not None:
            return
        match decision:
            case Grant():
                self._grant(decision, now)
            case Fold(number, factor, compensation):
                self._committed(number, "fold")
                part = Part(number, factor, compensation)
                check_fold(part, self._folded, self._tensors)
                self._folded[number] = part
                self._record(entries.Fold(number, factor, compensation or None), now)
            case Apply():
                self._apply(decision, now)
            case Drop(number, reason):
                ticket = self._committed(number, "drop")
                if number in self._folded:
                    raise PolicyError(f"drop of ticket {number}, which is folded: expected it in an apply")
                self._drop(ticket, reason, now)
            case Cancel(number, reason):
                self._cancel(number, reason, now)
            case Stop(reason):
                self._stop(reason, now, success=True, cause="policy")
            case _:
                raise PolicyError(f"expected Grant, Fold, Apply, Drop, Cancel or Stop, got {decision!r}")

    def _grant(self, grant: Grant, now: float) -> None:
        member = self.roster.present.get(grant.worker)
        if member is None or member.requested != grant.ticket:
            raise PolicyError(f"grant of ticket {grant.ticket}, for which {grant.worker} does not wait")
        member.requested = None
        member.enter("computing", now)
        ahead = True if grant.worker in self.tickets.opened else None
        index = self._record(entries.Grant(grant.worker, grant.ticket, self.version, grant.turn, ahead), now)
        ticket = Ticket(grant.ticket, member.worker, member.incarnation, self.version, now, index)
        self.tickets.open(ticket)
        self._tell(member, outputs.GrantNotice(grant.ticket, self.version, index))

    def _apply(self, apply: Apply, now: float) -> None:
        check_apply(apply, self._folded.values(), self._tensors)
        tickets = [self._committed(part.ticket, "apply") for part in apply.parts]
        if self._lists:
            check_list(tickets, self._tensors)
        version, scale = self.version, apply.scale
        # A list first: it is quicker than a generator, and an update of async has one part.
        listed = [
            AppliedPart(
                ticket.number,
                ticket.worker,
                ticket.base,
                version - ticket.base,
                part.factor * scale,
                part.factor,
                part.compensation or None,
            )
            for part, ticket in zip(apply.parts, tickets, strict=True)
        ]
        parts = tuple(listed)
        self._folded.clear()
        self.version += 1
        self._record(entries.Apply(self.version, apply.scale, apply.lr_scale, parts), now)
        for applied, ticket in zip(parts, tickets, strict=True):
            tally = self.roster.tally(ticket.worker)
            tally.applied += 1
            counts = tally.staleness
            # With many workers hardly any staleness comes twice: get is quicker than Counter's way with new keys.
            counts[applied.staleness] = counts.get(applied.staleness, 0) + 1
            fate = DispositionNotice(
                ticket.number, "applied", self.version, applied.staleness, applied.weight
            )
            self._settle(ticket, fate)
        if self.terms.versions and self.version >= self.terms.versions:
            self._stop(f"version {self.version} is reached", now, success=True, cause="versions")

    def _committed(self, number: int, verb: str) -> Ticket:
        ticket = self.tickets.live.get(number)
        if ticket is None or ticket.state != "pending":
            raise PolicyError(f"{verb} of ticket {number}, which is not committed and pending")
        return ticket

    def _drop(self, ticket: Ticket, reason: str, now: float) -> None:
        staleness = self.version - ticket.base
        self.roster.tally(ticket.worker).dropped += 1
        self._record(entries.Drop(ticket.worker, ticket.number, staleness, reason), now)
        fate = DispositionNotice(ticket.number, "dropped", staleness=staleness, reason=reason)
        self._settle(ticket, fate)

    def _cancel(self, number: int, reason: str, now: float) -> None:
        ticket = self.tickets.live.get(number)
        if ticket is None or ticket.state != "open":
            raise PolicyError(f"cancel of ticket {number}, which is not open")
        self._record(entries.Cancel(ticket.worker, number, reason), now)
        member = self._member(ticket.worker, ticket.incarnation)
        if member is not None:
            self._tell(member, outputs.CancelNotice(number, reason))
        self._settle(ticket, DispositionNotice(number, "dropped", reason="cancelled"), tell=False)

    def _rest(self, member: Member, now: float) -> None:
        """The member has ended its work on a ticket; it may hold another one, or wait for one already."""
        if member.worker in self.tickets.opened:
            member.enter("computing", now)
        else:
            member.enter("joined" if member.requested is None else "waiting", now)

    def _settle(self, ticket: Ticket, fate: DispositionNotice, *, tell: bool = True) -> None:
        self.tickets.settle(ticket.number, fate)
        member = self._member(ticket.worker, ticket.incarnation)
        if tell and member is not None:
            self._tell(member, fate)

    def _count_commit(self, ticket: Ticket, batch: int) -> None:
        tally = self.roster.tally(ticket.worker)
        tally.committed += 1
        tally.samples += ticket.samples
        tally.next_batch = max(tally.next_batch, batch + 1)
        if math.isfinite(ticket.loss):
            self.loss = ticket.loss if self.loss is None else 0.9 * self.loss + 0.1 * ticket.loss

    # The end

    def _stop(self, reason: str, now: float, *, success: bool, cause: str) -> None:
        if self.stopped is not None:
            return
        self.stopped = Stopped(reason, self.version, success, cause, now)
        for ticket in self.tickets.in_state("open"):
            self._cancel(ticket.number, "the job stopped", now)
        for ticket in self.tickets.in_state("pending"):
            self._drop(ticket, "stopped", now)
        self._stop_index = self._record(entries.Stop(reason, self.version, success), now)
        connected = [m for m in self.roster.by_rank() if m.absent_since is None]
        if success and connected:
            self._evaluator = connected[0].worker
        for member in connected:
            member.requested = None
            self._tell(member, self._stop_notice(member))

    def _tell_grant(self, member: Member, ticket: Ticket) -> None:
        grant = outputs.GrantNotice(ticket.number, ticket.base, ticket.index, ticket.initialise)
        self._tell(member, grant)

    def _stop_notice(self, member: Member) -> StopNotice:
        assert self.stopped is not None
        stopped = self.stopped
        evaluate = member.worker == self._evaluator
        return StopNotice(stopped.reason, stopped.version, stopped.success, self._stop_index, evaluate)

    def _watch(self, now: float) -> None:
        """It is an error of the policy if everybody waits and nobody can end it."""
        # Whoever holds a ticket does not wait. This spares a look at everybody at each message.
        if self.tickets.opened or self.stopped is not None or not self.started:
            return
        present = [m for m in self.roster.present.values() if m.state != "done"]
        if not present:
            return
        if all(m.requested is not None and m.playing and m.absent_since is None for m in present):
            waiting = ", ".join(m.worker for m in present)
            reason = f"policy {self.policy.name} deadlocked: {waiting} wait and no ticket is open"
            self._stop(reason, now, success=False, cause="policy")
