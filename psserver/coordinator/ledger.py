"""The changes of a job's state that write log entries, and the outputs of the present input."""

from psserver.coordinator.outputs import Declined, Joined, Output, Record, Send
from psserver.coordinator.roster import Member
from psserver.coordinator.state import JobState
from psserver.coordinator.terms import JobTerms, Stopped
from psserver.coordinator.tickets import Ticket, TicketEvent
from psserver.decisions import entries
from psserver.policies.composed import TOO_FEW
from pswire import protocol


class Ledger:
    """The outputs of the present input, and the changes of the job's state that write log entries.

    The coordinator's parts share one. Each field of `job` has one writer. `roster`: membership (a member's state:
    whichever part handles its input). `tickets`, `version`, `stopped`, `evaluator`, `stop_index`, `saved_*`: the
    methods below. `loss`, `lr_scale`, `usual_step`: the commit. `initialised`, `started`, `resting`: the lifecycle.
    `work`: the dealer; its queue changes with the tickets.
    """

    def __init__(self, terms: JobTerms, job: JobState) -> None:
        self.terms, self.job = terms, job
        # A checkpoint is due.
        self._due = False
        # The time of the newest entry.
        self._newest = job.now
        self._outputs: list[Output] = []

    # Outputs

    def emit(self) -> list[Output]:
        """Return the outputs since the last call, in order. Ends an input: a due checkpoint comes last."""
        if self._due:
            self.checkpoint(self._newest)
        out, self._outputs = self._outputs, []
        return out

    def record(self, entry: entries.Entry, now: float) -> int:
        """Append an entry to the log. Returns its number."""
        index, self._newest = self.job.entries, now
        self._outputs.append(Record(index, now, entry))
        self.job.entries += 1
        return index

    def answer(self, answer: Joined | Declined) -> None:
        """Answer whoever gave the input."""
        self._outputs.append(answer)

    def notify(self, member: Member, notice: protocol.Event) -> None:
        self._outputs.append(Send(member.worker, member.incarnation, notice))

    def refuse(self, member: Member, message: str, ticket: int = 0) -> None:
        self.notify(member, protocol.Refusal(message, ticket=ticket))

    def refuse_unknown_session(self, worker: str, incarnation: int) -> None:
        """Answer an input from a worker that is not a member."""
        notice = protocol.Refusal(self.unknown(worker, incarnation), fatal=True)
        self._outputs.append(Send(worker, incarnation, notice))

    def notify_grant(self, member: Member, ticket: Ticket) -> None:
        grant = protocol.Grant(ticket.number, ticket.base, ticket.index, ticket.initialise, ticket.part)
        self.notify(member, grant)

    # Lookups

    def unknown(self, worker: str, incarnation: int) -> str:
        """Return why that incarnation is refused."""
        present = self.job.roster.present.get(worker)
        now_here = f"; incarnation {present.incarnation} is" if present else ""
        return (
            f"worker {worker!r}, incarnation {incarnation}, is not a member of this job{now_here}; join again"
        )

    def own(self, member: Member, number: int, verb: str) -> Ticket | None:
        """Return the member's ticket; if it has no such ticket, refuse and return None."""
        ticket = self.job.tickets.find(number, member.worker)
        if ticket is not None:
            return ticket
        owner = self.job.tickets.owner(number)
        mine = [str(t.number) for t in self.job.tickets.open_of(member.worker)]
        expected = f"ticket {' or '.join(mine)}" if mine else "no ticket (none is open)"
        got = f"is {owner}'s" if owner else "is unknown: never granted, or settled long ago"
        self.refuse(
            member, f"{verb} of ticket {number} by {member.worker}: it {got}; expected {expected}", number
        )
        return None

    # Changes

    def made(self, version: int, now: float) -> None:
        """Move to a new version, and note if a checkpoint is due."""
        self.job.version = version
        terms = self.terms
        if not terms.checkpoints:
            return
        enough = 0 < terms.checkpoint_versions <= version - self.job.saved_version
        if enough or 0 < terms.checkpoint_seconds <= now - self.job.saved_at:
            self._due = True

    def save_soon(self) -> None:
        """Have a checkpoint at the end of this input, if the job takes any."""
        self._due = self._due or self.terms.checkpoints

    def checkpoint(self, now: float) -> None:
        """Order a checkpoint of the state after this input."""
        self._due = False
        self.job.saved_version, self.job.saved_at = self.job.version, now
        self.record(entries.Checkpoint(self.job.version), now)

    def unsaved(self, version: int, reason: str, now: float) -> None:
        """Note that the checkpoint of that version failed: the next one is due in half the usual time."""
        if self.job.stopped is not None:
            return
        self.record(entries.Unsaved(version, reason), now)
        if version >= self.job.saved_version:
            self.job.saved_version = version - max(1, self.terms.checkpoint_versions // 2)
            self.job.saved_at -= self.terms.checkpoint_seconds / 2

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a lost worker with data left has to come back at the end of the job.

        That is `worker_timeout` plus the time that the first worker took to start, which is capped because servers
        started by hand may have waited long for it.
        """
        start = self.job.first_session or 0.0
        return self.terms.worker_timeout + min(start, self.terms.leave_limit)

    def reopen(self) -> None:
        """Return to the time before the start, because the job resumes in new processes."""
        self.job.stopped, self.job.evaluator, self.job.stop_index = None, None, 0
        self.job.started = False
        # Workers report how much data they have when they come.
        self.job.extents.clear()
        self.job.roster.prepared.clear()
        for tally in self.job.roster.tallies.values():
            tally.arrived = False
        if self.job.resting and not self.job.expected:
            # New scripts begin with their first fit and may have more epochs: their batches say where to continue.
            self.job.phase, self.job.resting = 0, False
            for tally in self.job.roster.tallies.values():
                tally.phase_batch = 0

    def rest(self, member: Member, now: float) -> None:
        """Set the state of a member that has ended its work on a ticket: it may hold another one or wait for one."""
        if member.worker in self.job.tickets.opened:
            member.enter("computing", now)
        else:
            member.enter("joined" if member.requested is None else "waiting", now)

    def drop(self, ticket: Ticket, reason: str, now: float) -> None:
        """Drop a pending ticket."""
        staleness = self.job.version - ticket.base
        skipped = False
        if self.job.stopped is not None:
            self.deal_again(ticket)
        elif self.job.work is not None and ticket.part is not None:
            skipped = self.job.work.lose(ticket.part, self.job.version, dropped=True, short=reason == TOO_FEW)
        self.record(entries.Drop(ticket.worker, ticket.number, staleness, reason, skipped), now)
        member = self.job.roster.present.get(ticket.worker)
        if member is not None and member.encoded[0] == ticket.number:
            member.encoded_dropped = True
        self.job.roster.tally(ticket.worker).dropped += 1
        self.settle(
            ticket, "drop", protocol.Disposition(ticket.number, "dropped", staleness=staleness, reason=reason)
        )

    def cancel(self, ticket: Ticket, reason: str, now: float) -> None:
        """Cancel an open ticket and notify its worker."""
        self.record(entries.Cancel(ticket.worker, ticket.number, reason), now)
        self.deal_again(ticket)
        member = self.job.roster.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, protocol.Cancel(ticket.number, reason))
        fate = protocol.Disposition(ticket.number, "dropped", reason="cancelled")
        self.job.tickets.settle(ticket, "cancel", fate)
        if member is not None:
            self.rest(member, now)

    def deal_again(self, ticket: Ticket) -> None:
        """Return a void ticket's part of a work unit to the queue."""
        if self.job.work is not None and ticket.part is not None:
            self.job.work.come_back(ticket.part)

    def settle(self, ticket: Ticket, event: TicketEvent, fate: protocol.Disposition) -> None:
        """Settle a ticket by `event`, whose entry is in the log, and notify its worker."""
        self.job.tickets.settle(ticket, event, fate)
        member = self.job.roster.member(ticket.worker, ticket.incarnation)
        if member is not None:
            self.notify(member, fate)

    # The end

    def end_phase(self, reason: str) -> None:
        """End the phase, because all members are done and some stay for another; notify each of them."""
        self.job.resting = self.job.undeclared = True
        self.job.phase_ended = reason
        # A further fit may compile another loss.
        self.job.function = ("", "")
        self.job.started = False
        self.job.phase += 1
        for tally in self.job.roster.tallies.values():
            tally.phase_batch = tally.next_batch
        self.job.roster.prepared.clear()
        self._save_at_the_end()
        for member in self.job.roster.by_rank():
            if member.absent_since is None:
                self.notify(member, self.phase_notice(reason))

    def phase_notice(self, reason: str = "the phase is over") -> protocol.Stop:
        """Return the notice to a member that has ended its part of the phase."""
        return protocol.Stop(reason, self.job.version, True, self.job.entries - 1)

    def _save_at_the_end(self) -> None:
        if self.terms.checkpoints and self.job.version > self.job.saved_version:
            self._due = True

    def stop(self, reason: str, now: float, *, success: bool, cause: str) -> None:
        """End the job, unless it has ended. `cause` as in `Stopped`."""
        if self.job.stopped is not None:
            return
        self.job.stopped = Stopped(reason, self.job.version, success, cause, now)
        for ticket in self.job.tickets.in_state("open"):
            self.cancel(ticket, "the job stopped", now)
        for ticket in self.job.tickets.in_state("pending"):
            self.drop(ticket, "stopped", now)
        self.job.folded.clear()
        self.job.stop_index = self.record(entries.Stop(reason, self.job.version, success), now)
        if self.job.stopped.in_order:
            self._save_at_the_end()
        connected = [m for m in self.job.roster.by_rank() if m.absent_since is None]
        if self.job.stopped.in_order and connected and not self.job.resting:
            # After a phase its members have already been notified of the end, and evaluate nothing.
            self.job.evaluator = connected[0].worker
        for member in connected:
            member.requested = None
            self.notify(member, self.stop_notice(member))

    def stop_notice(self, member: Member) -> protocol.Stop:
        assert self.job.stopped is not None
        stopped = self.job.stopped
        evaluate = member.worker == self.job.evaluator
        return protocol.Stop(stopped.reason, stopped.version, stopped.in_order, self.job.stop_index, evaluate)
