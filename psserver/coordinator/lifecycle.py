"""The phases of a job: initialisation, start, end of the work."""

from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.roster import Member, named
from psserver.coordinator.tickets import Ticket
from psserver.decisions import entries
from psserver.policies import Abandon, Done
from pswire import protocol


class Lifecycle:
    """Moves a job to its next phase when its members have done their part."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver) -> None:
        self._ledger, self._job = ledger, ledger.job
        self._driver = driver

    def offer_initialisation(self, now: float) -> None:
        """Let the first worker that asks, by rank, install version 0; one at a time."""
        ledger = self._ledger
        if self._job.initialised or any(t.initialise for t in self._job.tickets.in_state("open")):
            return
        for member in self._job.roster.by_rank():
            if member.requested is not None:
                number, member.requested = member.requested, None
                self._job.roster.prepared.discard(member.worker)
                member.enter("computing", now)
                index = ledger.record(entries.Initialise(member.worker, number), now)
                ticket = Ticket(number, member.worker, member.incarnation, 0, now, index, initialise=True)
                self._job.tickets.open(ticket)
                ledger.notify(member, protocol.Grant(number, 0, index, initialise=True))
                return

    def install(self, member: Member, ticket: Ticket, now: float) -> None:
        """Make the payload of an initialising ticket version 0, and settle what the job trains."""
        ledger, proposal = self._ledger, self._job.proposal
        self._job.initialised = True
        member.enter("joined", now)
        ledger.record(entries.Model(proposal.variables, proposal.optimizer, self._job.function[1]), now)
        ledger.record(entries.Install(member.worker, ticket.number), now)
        ledger.settle(ticket, "install", protocol.Disposition(ticket.number, "applied", version=0))
        self.start_when_complete(now)

    @property
    def missing(self) -> int:
        """The number of workers that the start still waits for.

        Once all have joined, it does not wait for one that has left, nor after a rollback for one that had left before.
        """
        needed, roster = self._ledger.terms.quorum, self._job.roster
        if self._job.resting and self._job.resumed_at is None:
            return len(roster.expected()) - len(roster.prepared)
        if self._all_came():
            needed = min(needed, len(roster.expected()))
        missing, expected = max(0, needed - len(roster.prepared)), self._job.expected
        return min(missing, len(expected - roster.prepared)) if expected else missing

    def start_when_complete(self, now: float) -> None:
        """Start once all expected workers are ready, so that a slow starter misses no grant."""
        ledger = self._ledger
        if self._job.started or not self._job.initialised:
            return
        prepared = self._job.roster.prepared
        if not prepared or (self.missing and not self._regathered(now)):
            return
        here = [m for m in self._job.roster.by_rank() if m.worker in prepared]
        self._job.started, self._job.resting, self._job.resumed_at = True, False, None
        ledger.record(entries.Start(len(here)), now)
        if self._job.work is not None:
            self._job.work.release_all_but(self._job.roster.present)
        asking = [m for m in here if m.requested is not None]
        for member in asking:
            self._driver.introduce(member, now)
        for member in asking:
            self._driver.request(member, now)

    def _regathered(self, now: float) -> bool:
        """Whether a resumed job has waited long enough for its former workers, which may still come later."""
        since, limit = self._job.resumed_at, self._ledger.terms.regather
        return since is not None and 0 < limit <= now - since

    def finish_when_done(self, now: float) -> None:
        """Stop when all present members are done and those that left unfinished had time to come back."""
        ledger = self._ledger
        roster = self._job.roster
        if self._job.stopped is not None or not (self._job.started or self._all_came()):
            return
        if self._job.tickets.opened:
            return  # a holder is not done
        if self._job.work is not None and self._job.work.standby and self._job.work.available > 0:
            return  # a worker on standby takes the work that came back
        if self._job.resting and roster.expected():
            return
        present = roster.here()
        finished_before = not present and (self._job.resting or not roster.unfinished)
        if not finished_before and (not present or any(m.state != "done" for m in present)):
            return
        waited = any(now - left_at < ledger.rejoin_limit for left_at in roster.unfinished.values())
        if waited and not self._job.phase_ends:
            return
        if self._job.work is not None and self._job.work.complete:
            self.finish_work(now)
        else:
            self._finish(now)

    def finish_work(self, now: float) -> None:
        """End, because every work unit is done: each part of it was applied or skipped."""
        work = self._job.work
        assert work is not None
        policy = self._driver.policy
        left_over = work.left_over(policy.tensors.fewest)
        skipped = f"; {work.skipped} parts of them were skipped" if work.skipped else ""
        if work.skipped and left_over:
            skipped = (
                f"; the last {work.skipped} parts did not count: an update under the policy {policy.name} needs "
                f"{policy.tensors.fewest}"
            )
        missing = bool(work.skipped) and not left_over and not self._ledger.terms.allow_missing
        self._succeed(f"all work units are done{skipped}{self._nothing_applied}", now, missing=missing)

    @property
    def _nothing_applied(self) -> str:
        """A clause of the reason of the end, if all contributions were dropped; else empty."""
        committed = sum(tally.committed for tally in self._job.roster.tallies.values())
        if self._job.version or not committed:
            return ""
        return f"; none of {committed} contributions was applied: the model is untrained"

    def _succeed(self, reason: str, now: float, *, missing: bool = False) -> None:
        """End the job, or the phase if members stay for another one.

        `missing`: some data was not trained, which is a failure at the end of the job.
        """
        ledger = self._ledger
        here = self._job.roster.here()
        if not any(member.stays for member in here):
            ledger.stop(reason, now, success=not missing, cause="missing" if missing else "done")
        elif all(member.state == "done" for member in here):
            ledger.end_phase(self._job.phase_ends or reason)
            self._job.phase_ends = ""
        else:
            self.end_phase(reason, now)

    def end_phase(self, reason: str, now: float) -> None:
        """End the phase for all members at once, and cancel their tickets."""
        ledger, driver = self._ledger, self._driver
        self._job.phase_ends = reason
        if self._job.work is not None:
            self._job.work.standby.clear()
        for member in self._job.roster.here():
            if member.state == "done":
                continue
            for ticket in self._job.tickets.open_of(member.worker):
                ledger.cancel(ticket, reason, now)
                driver.decide(Abandon(member.worker, ticket.number, reason, driver.time(now)), now)
            member.enter("done", now)
            member.requested = None
            ledger.record(entries.Done(member.worker), now)
            if member.known_to_policy:
                driver.decide(Done(member.worker, driver.time(now)), now)
        self.finish_when_done(now)

    def _finish(self, now: float) -> None:
        ledger = self._ledger
        left = self._job.tickets.in_state("pending")
        if self._job.started and left:
            numbers = ", ".join(str(ticket.number) for ticket in left[:5])
            name = self._driver.policy.name
            reason = f"policy {name} neither applied nor dropped {len(left)} tickets ({numbers}, ...)"
            ledger.stop(f"all workers are done, but {reason}", now, success=False, cause="policy")
        elif self._job.started or self._job.resting:
            gone = named(self._job.roster.unfinished)
            reason = self._job.phase_ended if self._job.resting else "all workers are done"
            lost = {
                name: tally.missed for name, tally in sorted(self._job.roster.tallies.items()) if tally.missed
            }
            for clause in (
                f"; {gone} left before its data ended" if gone else "",
                f"; {sum(lost.values())} batches of {named(lost)} were lost with a server or a connection"
                if lost
                else "",
            ):
                if clause not in reason:
                    reason += clause
            if self._job.work is not None:
                reason += "; not all work units were trained"
            untrained = self._nothing_applied
            reason += untrained
            missing = bool(gone or lost or untrained or self._job.work is not None)
            missing = missing and not ledger.terms.allow_missing
            self._succeed(reason, now, missing=missing)
        else:
            reason = "all workers are done and nothing was trained: there is no model"
            ledger.stop(reason, now, success=False, cause="empty")

    def _all_came(self) -> bool:
        return self._job.roster.arrived >= self._ledger.terms.quorum
