"""What the coordinator knows of a job but for its policy, and the moves that leave an entry in the log."""

from psserver.coordinator.members.roster import Member, Roster
from psserver.coordinator.outputs import Output, Record, Send, Trial
from psserver.coordinator.terms import JobTerms, Stopped
from psserver.coordinator.tickets.table import Ticket, TicketEvent, TicketTable
from psserver.coordinator.work.queue import WorkQueue
from pswire import protocol
from pswire.decisions import entries


class Ledger:
    """Members, tickets, the version, and what the present input puts out. One per coordinator; its parts share it.

    Each field has one writer. `roster`: membership (the state of a member: whatever handles its input).
    `tickets`, `version`, `stopped` and what goes with it, `saved_*`: the moves below. `loss`, `lr_scale`,
    `usual_step`: the commit. `initialised`, `started`, `resting`: the lifecycle. `work`: the dealer; its queue
    changes with the tickets. Times are seconds of the caller's clock.
    """

    def __init__(self, terms: JobTerms, now: float) -> None:
        self.terms = terms
        self.roster = Roster(now)
        self.tickets = TicketTable(terms.first_ticket)
        # None in a job that deals no work units.
        self.work: WorkQueue | None = None
        self.version = 0
        self.initialised = False
        self.started = False
        # A phase is over, and the next has not begun: members that stay may begin it.
        self.resting = False
        # Why the last phase ended.
        self.phase_ended = ""
        # How many phases are over.
        self.phase = 0
        # Nobody has said yet what the next phase deals.
        self.undeclared = False
        self.stopped: Stopped | None = None
        # Smoothed loss of recent commits; None before the first.
        self.loss: float | None = None
        # What the learning rate that the job began with is multiplied by.
        self.lr_scale = 1.0
        # Smoothed seconds from grant to commit; None before the first.
        self.usual_step: float | None = None
        self.began = now
        # Entries of the decision log so far.
        self.entries = 0
        # The worker that is asked to evaluate at the end, and the number of the stop's entry.
        self.evaluator: str | None = None
        self.stop_index = 0
        # Of the newest checkpoint, or of the beginning.
        self.saved_version, self.saved_at = 0, now
        # A version was made for which a checkpoint is due; none is taken while the shards are asked about an update.
        self._due = False
        self.trying = False
        # When the job went on from a checkpoint, until it starts again.
        self.resumed_at: float | None = None
        # Behind a rollback: who was a member when it came. Empty: nobody knows.
        self.expected: frozenset[str] = frozenset()
        # When the first session of all stood.
        self.first_session: float | None = None
        # The time of the newest entry.
        self._newest = now
        self._outputs: list[Output] = []

    # Outputs

    def emit(self) -> list[Output]:
        """What was put out since the last call, in order. The end of an input: a checkpoint that is due comes last."""
        if self._due and not self.trying:
            self.checkpoint(self._newest)
        out, self._outputs = self._outputs, []
        return out

    def record(self, entry: entries.Entry, now: float) -> int:
        """Append an entry to the log. Returns its number."""
        index, self._newest = self.entries, now
        self._outputs.append(Record(index, now - self.began, entry))
        self.entries += 1
        return index

    def ask(self, trial: Trial) -> None:
        """Have the shards asked."""
        self.trying = True
        self._outputs.append(trial)

    def notify(self, member: Member, notice: protocol.Event) -> None:
        self._outputs.append(Send(member.worker, member.incarnation, notice))

    def refuse(self, member: Member, message: str, ticket: int = 0) -> None:
        self.notify(member, protocol.Refusal(message, ticket=ticket))

    def refuse_unknown_session(self, worker: str, incarnation: int) -> list[Output]:
        """The whole answer to an input of one that is not a member."""
        notice = protocol.Refusal(self.unknown(worker, incarnation), fatal=True)
        return [Send(worker, incarnation, notice)]

    def notify_grant(self, member: Member, ticket: Ticket) -> None:
        grant = protocol.Grant(ticket.number, ticket.base, ticket.index, ticket.initialise, ticket.part)
        self.notify(member, grant)

    # Lookups

    def member(self, worker: str, incarnation: int) -> Member | None:
        """The present member of that incarnation."""
        member = self.roster.present.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def unknown(self, worker: str, incarnation: int) -> str:
        """Why that incarnation is refused."""
        present = self.roster.present.get(worker)
        now_here = f"; incarnation {present.incarnation} is" if present else ""
        return (
            f"worker {worker!r}, incarnation {incarnation}, is not a member of this job{now_here}; join again"
        )

    def own(self, member: Member, number: int, verb: str) -> Ticket | None:
        """The member's ticket; otherwise a refusal that names what was expected."""
        ticket = self.tickets.find(number, member.worker)
        if ticket is not None:
            return ticket
        owner = self.tickets.owner(number)
        mine = [str(t.number) for t in self.tickets.open_of(member.worker)]
        expected = f"ticket {' or '.join(mine)}" if mine else "no ticket (none is open)"
        got = f"is {owner}'s" if owner else "is unknown: never granted, or settled long ago"
        self.refuse(
            member, f"{verb} of ticket {number} by {member.worker}: it {got}; expected {expected}", number
        )
        return None

    # Moves

    def made(self, version: int, now: float) -> None:
        """There is a new version."""
        self.version = version
        terms = self.terms
        if not terms.checkpoints:
            return
        enough = 0 < terms.checkpoint_versions <= version - self.saved_version
        if enough or 0 < terms.checkpoint_seconds <= now - self.saved_at:
            self._due = True

    def checkpoint(self, now: float) -> None:
        """Order that everything is saved as it is behind this input."""
        self._due = False
        self.saved_version, self.saved_at = self.version, now
        self.record(entries.Checkpoint(self.version), now)

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a worker which was lost before its data ended has to come back at the end: what the first worker
        took to start, beyond the time that any silent worker has. Servers by hand may have waited long for their first
        worker, so there is a most."""
        start = 0.0 if self.first_session is None else self.first_session - self.began
        return self.terms.worker_timeout + min(start, self.terms.leave_limit)

    def reopen(self) -> None:
        """The job goes on in new processes: grants begin when as many workers have come as at its first start."""
        self.stopped, self.evaluator, self.stop_index = None, None, 0
        self.started = False
        self.roster.prepared.clear()
        for tally in self.roster.tallies.values():
            tally.arrived = False
        if self.resting and not self.expected:
            # New scripts begin with their first fit, and may have more epochs: batches tell them where to go on.
            self.phase, self.resting = 0, False
            for tally in self.roster.tallies.values():
                tally.phase_batch = 0

    def rest(self, member: Member, now: float) -> None:
        """The member has ended its work on a ticket; it may hold another one, or wait for one already."""
        if member.worker in self.tickets.opened:
            member.enter("computing", now)
        else:
            member.enter("joined" if member.requested is None else "waiting", now)

    def drop(self, ticket: Ticket, reason: str, now: float) -> None:
        """A pending ticket is not applied."""
        staleness = self.version - ticket.base
        skipped = False
        if self.stopped is not None:
            self.deal_again(ticket)
        elif self.work is not None and ticket.part is not None:
            skipped = self.work.lose(ticket.part, self.version, dropped=True)
        self.record(entries.Drop(ticket.worker, ticket.number, staleness, reason, skipped), now)
        self.roster.tally(ticket.worker).dropped += 1
        self.settle(
            ticket, "drop", protocol.Disposition(ticket.number, "dropped", staleness=staleness, reason=reason)
        )

    def cancel(self, ticket: Ticket, reason: str, now: float) -> None:
        """An open ticket is void; its worker is notified."""
        self.record(entries.Cancel(ticket.worker, ticket.number, reason), now)
        self.deal_again(ticket)
        member = self.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, protocol.Cancel(ticket.number, reason))
        fate = protocol.Disposition(ticket.number, "dropped", reason="cancelled")
        self.tickets.settle(ticket, "cancel", fate)

    def deal_again(self, ticket: Ticket) -> None:
        """A ticket is void: what it took of a work unit comes back."""
        if self.work is not None and ticket.part is not None:
            self.work.come_back(ticket.part)

    def settle(self, ticket: Ticket, event: TicketEvent, fate: protocol.Disposition) -> None:
        """`event`, whose entry is in the log, has decided the ticket's fate; its worker is notified."""
        self.tickets.settle(ticket, event, fate)
        member = self.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, fate)

    # The end

    def end_phase(self, reason: str) -> None:
        """All members are done, and some may begin another phase of the job: each is told that this one is over."""
        self.resting = self.undeclared = True
        self.phase_ended = reason
        self.started = False
        self.phase += 1
        for tally in self.roster.tallies.values():
            tally.phase_batch = tally.next_batch
        self.roster.prepared.clear()
        self._save_at_the_end()
        for member in self.roster.by_rank():
            if member.absent_since is None:
                self.notify(member, self.phase_notice(reason))

    def phase_notice(self, reason: str = "the phase is over") -> protocol.Stop:
        """To a member that has ended its part of it."""
        return protocol.Stop(reason, self.version, True, self.entries - 1)

    def _save_at_the_end(self) -> None:
        if self.terms.checkpoints and self.version > self.saved_version:
            self._due = True

    def stop(self, reason: str, now: float, *, success: bool, cause: str) -> None:
        """End the job, unless it has ended. `cause` as in `Stopped`."""
        if self.stopped is not None:
            return
        self.stopped = Stopped(reason, self.version, success, cause, now)
        for ticket in self.tickets.in_state("open"):
            self.cancel(ticket, "the job stopped", now)
        for ticket in self.tickets.in_state("pending"):
            self.drop(ticket, "stopped", now)
        self.stop_index = self.record(entries.Stop(reason, self.version, success), now)
        if self.stopped.in_order:
            self._save_at_the_end()
        connected = [m for m in self.roster.by_rank() if m.absent_since is None]
        if self.stopped.in_order and connected and not self.resting:
            # Behind a phase its members have heard of their end, and evaluate nothing.
            self.evaluator = connected[0].worker
        for member in connected:
            member.requested = None
            self.notify(member, self.stop_notice(member))

    def stop_notice(self, member: Member) -> protocol.Stop:
        assert self.stopped is not None
        stopped = self.stopped
        evaluate = member.worker == self.evaluator
        return protocol.Stop(stopped.reason, stopped.version, stopped.in_order, self.stop_index, evaluate)
