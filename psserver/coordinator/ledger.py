"""The coordinator's facts of a job, without its policy, and the changes that write log entries."""

from psserver.coordinator.members.functions import Function
from psserver.coordinator.members.roster import Member, Roster
from psserver.coordinator.outputs import Output, Record, Send, Trial
from psserver.coordinator.progress import Extent
from psserver.coordinator.terms import JobTerms, Stopped
from psserver.coordinator.tickets.table import Ticket, TicketEvent, TicketTable
from psserver.coordinator.work.queue import WorkQueue
from psserver.policies.composed import TOO_FEW
from pswire import protocol
from pswire.decisions import entries


class Ledger:
    """Members, tickets, the version, and the outputs of the present input. The coordinator's parts share one.

    Each field has one writer. `roster`: membership (a member's state: whichever part handles its input).
    `tickets`, `version`, `stopped`, `evaluator`, `stop_index`, `saved_*`: the methods below. `loss`, `lr_scale`,
    `usual_step`: the commit. `initialised`, `started`, `resting`: the lifecycle. `work`: the dealer; its queue
    changes with the tickets. Times are seconds of the caller's clock.
    """

    def __init__(self, terms: JobTerms, now: float) -> None:
        self.terms = terms
        self.roster = Roster(now)
        self.tickets = TicketTable(terms.first_ticket)
        # None if the job deals no work units.
        self.work: WorkQueue | None = None
        self.version = 0
        self.initialised = False
        self.started = False
        # Between two phases: members that stay may begin the next one.
        self.resting = False
        # Why the last phase ended; and why the present one ends before its data does, until it is over.
        self.phase_ended = self.phase_ends = ""
        # Of the models of the present phase.
        self.function = Function()
        # The number of finished phases.
        self.phase = 0
        # The next phase's work units are not declared yet.
        self.undeclared = False
        self.stopped: Stopped | None = None
        # Smoothed loss of recent commits; None before the first.
        self.loss: float | None = None
        # How much data each worker has, if it says so.
        self.extents: dict[str, Extent] = {}
        # Factor of the initial learning rate.
        self.lr_scale = 1.0
        # Smoothed seconds from grant to commit; None before the first.
        self.usual_step: float | None = None
        self.began = now
        # Entries of the decision log so far.
        self.entries = 0
        # The worker that is asked to evaluate at the end, and the number of the stop's entry.
        self.evaluator: str | None = None
        self.stop_index = 0
        # Version and time of the newest checkpoint, or of the beginning.
        self.saved_version, self.saved_at = 0, now
        # A checkpoint is due. None is taken during a trial, which `trying` says.
        self._due = False
        self.trying = False
        # When the job resumed from a checkpoint; None once it has started again.
        self.resumed_at: float | None = None
        # After a rollback: the members before it, if known; else empty.
        self.expected: frozenset[str] = frozenset()
        # When the first session was up.
        self.first_session: float | None = None
        # The time of the newest entry.
        self._newest = now
        self._outputs: list[Output] = []

    # Outputs

    def emit(self) -> list[Output]:
        """Return the outputs since the last call, in order. Ends an input: a due checkpoint comes last."""
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
        """Begin a trial."""
        self.trying = True
        self._outputs.append(trial)

    def notify(self, member: Member, notice: protocol.Event) -> None:
        self._outputs.append(Send(member.worker, member.incarnation, notice))

    def refuse(self, member: Member, message: str, ticket: int = 0) -> None:
        self.notify(member, protocol.Refusal(message, ticket=ticket))

    def refuse_unknown_session(self, worker: str, incarnation: int) -> list[Output]:
        """Return the whole answer to an input from a worker that is not a member."""
        notice = protocol.Refusal(self.unknown(worker, incarnation), fatal=True)
        return [Send(worker, incarnation, notice)]

    def notify_grant(self, member: Member, ticket: Ticket) -> None:
        grant = protocol.Grant(ticket.number, ticket.base, ticket.index, ticket.initialise, ticket.part)
        self.notify(member, grant)

    # Lookups

    def member(self, worker: str, incarnation: int) -> Member | None:
        """Return the present member of that incarnation; None if there is none."""
        member = self.roster.present.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def unknown(self, worker: str, incarnation: int) -> str:
        """Return why that incarnation is refused."""
        present = self.roster.present.get(worker)
        now_here = f"; incarnation {present.incarnation} is" if present else ""
        return (
            f"worker {worker!r}, incarnation {incarnation}, is not a member of this job{now_here}; join again"
        )

    def own(self, member: Member, number: int, verb: str) -> Ticket | None:
        """Return the member's ticket; if it has no such ticket, refuse and return None."""
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

    # Changes

    def made(self, version: int, now: float) -> None:
        """Move to a new version, and note if a checkpoint is due."""
        self.version = version
        terms = self.terms
        if not terms.checkpoints:
            return
        enough = 0 < terms.checkpoint_versions <= version - self.saved_version
        if enough or 0 < terms.checkpoint_seconds <= now - self.saved_at:
            self._due = True

    def save_soon(self) -> None:
        """Have a checkpoint at the end of this input, if the job takes any."""
        self._due = self._due or self.terms.checkpoints

    def checkpoint(self, now: float) -> None:
        """Order a checkpoint of the state after this input."""
        self._due = False
        self.saved_version, self.saved_at = self.version, now
        self.record(entries.Checkpoint(self.version), now)

    def unsaved(self, version: int, reason: str, now: float) -> None:
        """Note that the checkpoint of that version failed: the next one is due in half the usual time."""
        if self.stopped is not None:
            return
        self.record(entries.Unsaved(version, reason), now)
        if version >= self.saved_version:
            self.saved_version = version - max(1, self.terms.checkpoint_versions // 2)
            self.saved_at -= self.terms.checkpoint_seconds / 2

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a lost worker with data left has to come back at the end of the job.

        That is `worker_timeout` plus the time that the first worker took to start, which is capped because servers
        started by hand may have waited long for it.
        """
        start = 0.0 if self.first_session is None else self.first_session - self.began
        return self.terms.worker_timeout + min(start, self.terms.leave_limit)

    def reopen(self) -> None:
        """Return to the time before the start, because the job resumes in new processes."""
        self.stopped, self.evaluator, self.stop_index = None, None, 0
        self.started = False
        # Workers report how much data they have when they come.
        self.extents.clear()
        self.roster.prepared.clear()
        for tally in self.roster.tallies.values():
            tally.arrived = False
        if self.resting and not self.expected:
            # New scripts begin with their first fit and may have more epochs: their batches say where to continue.
            self.phase, self.resting = 0, False
            for tally in self.roster.tallies.values():
                tally.phase_batch = 0

    def rest(self, member: Member, now: float) -> None:
        """Set the state of a member that has ended its work on a ticket: it may hold another one or wait for one."""
        if member.worker in self.tickets.opened:
            member.enter("computing", now)
        else:
            member.enter("joined" if member.requested is None else "waiting", now)

    def drop(self, ticket: Ticket, reason: str, now: float) -> None:
        """Drop a pending ticket."""
        staleness = self.version - ticket.base
        skipped = False
        if self.stopped is not None:
            self.deal_again(ticket)
        elif self.work is not None and ticket.part is not None:
            skipped = self.work.lose(ticket.part, self.version, dropped=True, short=reason == TOO_FEW)
        self.record(entries.Drop(ticket.worker, ticket.number, staleness, reason, skipped), now)
        member = self.roster.present.get(ticket.worker)
        if member is not None and member.encoded[0] == ticket.number:
            member.encoded_dropped = True
        self.roster.tally(ticket.worker).dropped += 1
        self.settle(
            ticket, "drop", protocol.Disposition(ticket.number, "dropped", staleness=staleness, reason=reason)
        )

    def cancel(self, ticket: Ticket, reason: str, now: float) -> None:
        """Cancel an open ticket and notify its worker."""
        self.record(entries.Cancel(ticket.worker, ticket.number, reason), now)
        self.deal_again(ticket)
        member = self.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, protocol.Cancel(ticket.number, reason))
        fate = protocol.Disposition(ticket.number, "dropped", reason="cancelled")
        self.tickets.settle(ticket, "cancel", fate)

    def deal_again(self, ticket: Ticket) -> None:
        """Return a void ticket's part of a work unit to the queue."""
        if self.work is not None and ticket.part is not None:
            self.work.come_back(ticket.part)

    def settle(self, ticket: Ticket, event: TicketEvent, fate: protocol.Disposition) -> None:
        """Settle a ticket by `event`, whose entry is in the log, and notify its worker."""
        self.tickets.settle(ticket, event, fate)
        member = self.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, fate)

    # The end

    def end_phase(self, reason: str) -> None:
        """End the phase, because all members are done and some stay for another; notify each of them."""
        self.resting = self.undeclared = True
        self.phase_ended = reason
        # A further fit may compile another loss.
        self.function = Function()
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
        """Return the notice to a member that has ended its part of the phase."""
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
            # After a phase its members have already been notified of the end, and evaluate nothing.
            self.evaluator = connected[0].worker
        for member in connected:
            member.requested = None
            self.notify(member, self.stop_notice(member))

    def stop_notice(self, member: Member) -> protocol.Stop:
        assert self.stopped is not None
        stopped = self.stopped
        evaluate = member.worker == self.evaluator
        return protocol.Stop(stopped.reason, stopped.version, stopped.in_order, self.stop_index, evaluate)
