"""The phases of a job: who initialises the model, when the policy begins to decide, when the work is done."""

from psserver.coordinator import entries, outputs
from psserver.coordinator.members import Member
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.tickets import Ticket
from psserver.policies import Join, Ready


class Lifecycle(PolicyDriver):
    """Moves a job on when its members have done their part."""

    def _offer_initialisation(self, now: float) -> None:
        """The first that asks, by rank, may install version 0; nobody else while it tries."""
        if self.initialised or any(t.initialise for t in self.tickets.in_state("open")):
            return
        for member in self.roster.by_rank():
            if member.requested is not None:
                number, member.requested = member.requested, None
                self.roster.prepared.discard(member.worker)
                member.enter("computing", now)
                index = self._record(entries.Initialise(member.worker, number), now)
                ticket = Ticket(number, member.worker, member.incarnation, 0, now, index, initialise=True)
                self.tickets.open(ticket)
                self._tell(member, outputs.GrantNotice(number, 0, index, initialise=True))
                return

    def _install(self, member: Member, ticket: Ticket, now: float) -> None:
        self.initialised = True
        member.enter("joined", now)
        self._record(entries.Install(member.worker, ticket.number), now)
        self._settle(ticket, outputs.DispositionNotice(ticket.number, "applied", version=0))
        self._start_when_complete(now)

    @property
    def missing(self) -> int:
        """How many the start still waits for. Once all have joined, nobody waits for one that is gone."""
        needed = self.terms.workers
        if self._all_came():
            needed = min(needed, len(self.roster.present))
        return max(0, needed - len(self.roster.prepared))

    def _start_when_complete(self, now: float) -> None:
        """The first grants go out together, so that a slow starter misses nothing."""
        if self.started or not self.initialised:
            return
        if not self.roster.prepared or self.missing:
            return
        here = [m for m in self.roster.by_rank() if m.worker in self.roster.prepared]
        self.started = True
        self._record(entries.Start(len(here)), now)
        asking = [m for m in here if m.requested is not None]
        for member in asking:
            member.playing = True
            self._decide(Join(member.worker, member.rank), now)
        for member in asking:
            self._play(member, now)

    def _play(self, member: Member, now: float) -> None:
        """Bring a member's request before the policy."""
        if not member.playing:
            member.playing = True
            self._decide(Join(member.worker, member.rank), now)
        if member.requested is not None and self.stopped is None:
            self._decide(Ready(member.worker, member.requested), now)

    def _finish_when_done(self, now: float) -> None:
        """Everyone present is done, and whoever left unfinished had time to come back."""
        if self.stopped is not None or self.terms.stay or not (self.started or self._all_came()):
            return
        if self.tickets.opened:
            return  # its holder is not done
        present = self.roster.present.values()
        finished_before = not present and not self.roster.unfinished
        if not finished_before and (not present or any(m.state != "done" for m in present)):
            return
        since = max((m.since for m in present), default=now)
        since = max([since, *self.roster.unfinished.values()])
        if self.roster.unfinished and now - since < self.terms.worker_timeout:
            return
        left = self.tickets.in_state("pending")
        if self.started and left:
            numbers = ", ".join(str(ticket.number) for ticket in left[:5])
            reason = (
                f"policy {self.policy.name} neither applied nor dropped {len(left)} tickets ({numbers}, ...)"
            )
            self._stop(f"all workers are done, but {reason}", now, success=False, cause="policy")
        elif self.started:
            gone = ", ".join(self.roster.unfinished)
            reason = (
                f"all workers are done; {gone} left before its data ended" if gone else "all workers are done"
            )
            self._stop(reason, now, success=True, cause="done")
        else:
            reason = "all workers are done and nothing was trained: there is no model"
            self._stop(reason, now, success=False, cause="empty")

    def _all_came(self) -> bool:
        return len(self.roster.tallies) >= self.terms.workers
