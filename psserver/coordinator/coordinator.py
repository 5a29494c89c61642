"""The coordinator's inputs: what workers say and what time does.

Every method is one input. It answers with outputs in order; afterwards the
state is consistent again. How policy decisions are carried out is in `ruling`.
"""

from psserver.coordinator import entries, outputs
from psserver.coordinator.members import Member
from psserver.coordinator.outputs import JoinRefused, Output
from psserver.coordinator.ruling import JobTerms, Ruling
from psserver.coordinator.tickets import Ticket
from psserver.policies import Abandon, Commit, Done, Join, Leave, Policy, Ready

__all__ = ["Coordinator", "JobTerms"]


class Coordinator(Ruling):
    """Membership, tickets and one policy: a deterministic state machine.

    `now` is any monotonic number of seconds. Inputs of an unknown or
    superseded incarnation are answered by a fatal refusal and change nothing.
    """

    def __init__(self, terms: JobTerms, policy: Policy, now: float) -> None:
        super().__init__(terms, policy, now)
        self._empty_since: float | None = now

    def opening(self) -> list[Output]:
        """The first log entry. Call once, before any other input."""
        terms, policy = self.terms, self.policy
        self._record(
            entries.Job(
                terms.job,
                {"name": policy.name, **policy.knobs},
                terms.optimizer,
                terms.servers,
                terms.workers,
                terms.seed,
            ),
            self._began,
        )
        return self._emit()

    # Membership

    def join(self, worker: str, session: str, rank: int | None, now: float) -> tuple[Member, list[Output]]:
        """Make a worker a member. Raises JoinRefused; nothing has changed then.

        An empty `worker` gets the name "w<rank>"; a rank of None the lowest
        free one. The same `session` again is the same member. A present worker
        of the same name but another session is superseded: a process that was
        restarted must not wait for its own ghost.
        """
        if self.stopped is not None:
            raise JoinRefused(f"the job is over: {self.stopped.reason}")
        known = self.roster.present.get(worker) if worker else None
        if known is None and not worker and rank is not None:
            known = self.roster.holder(rank)
            worker = known.worker if known else f"w{rank}"
        if known is not None and known.session == session:
            return known, []
        if rank is None:
            rank = known.rank if known else self.roster.free_rank()
        worker = worker or f"w{rank}"
        holder = self.roster.holder(rank)
        if holder is not None and holder.worker != worker:
            raise JoinRefused(
                f"task index {rank} belongs to worker {holder.worker!r}; {worker!r} needs another one "
                f"(the lowest free is {self.roster.free_rank()})"
            )
        if known is not None:
            self._tell(known, outputs.RefusalNotice(f"another process joined as {worker!r}", fatal=True))
            self._depart(known, "superseded by a newer incarnation", now)
        return self._admit(worker, session, rank, now), self._emit()

    def _admit(self, worker: str, session: str, rank: int, now: float) -> Member:
        tally = self.roster.tally(worker)
        member = Member(worker, tally.incarnations, rank, session, "joined", now, absent_since=now)
        tally.incarnations += 1
        self.roster.present[worker] = member
        self.roster.unfinished.pop(worker, None)
        self._empty_since = None
        self._record(entries.Join(worker, member.incarnation, rank), now)
        return member

    def connect(self, worker: str, incarnation: int, session: str, now: float) -> list[Output]:
        """The worker's session stream stands (again): repeat what it may have missed."""
        member = self._member(worker, incarnation)
        if member is None or member.session != session:
            return self._stranger(worker, incarnation)
        if member.ever_connected and member.absent_since is not None:
            self._record(entries.Back(worker), now)
        member.absent_since, member.ever_connected = None, True
        for ticket in self.tickets.recent_of(worker):
            if ticket.fate is not None and ticket.incarnation == incarnation:
                self._tell(member, ticket.fate)
        for ticket in self.tickets.open_of(worker):
            grant = outputs.GrantNotice(ticket.number, ticket.base, ticket.index, ticket.initialise)
            self._tell(member, grant)
        if self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        return self._emit()

    def disconnect(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The stream broke. The worker may come back within the grace period (see `tick`)."""
        member = self._member(worker, incarnation)
        if member is not None and member.absent_since is None:
            if self.stopped is not None:
                self._depart(member, "finished" if member.state == "done" else "stopped", now)
            else:
                member.absent_since = now
                self._record(entries.Lost(worker), now)
        return self._emit()

    def leave(self, worker: str, incarnation: int, reason: str, now: float) -> list[Output]:
        """The worker says goodbye."""
        member = self._member(worker, incarnation)
        if member is not None:
            self._depart(member, reason, now)
        return self._emit()

    # Work

    def ready(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The worker is idle and asks for its next ticket."""
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        opened = self.tickets.open_of(worker)
        if self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        elif opened:
            self._refuse(
                member,
                f"{worker} said ready while it holds ticket {opened[0].number}: "
                "expected its commit or abandon first",
                opened[0].number,
            )
        elif member.state == "done":
            self._refuse(member, f"{worker} said ready after done: expected nothing more from it")
        elif member.requested is None:
            self._request(member, now)
        return self._emit()

    def commit(
        self,
        worker: str,
        incarnation: int,
        ticket: int,
        now: float,
        *,
        batch: int = 0,
        samples: int = 0,
        loss: float = 0.0,
        norm: float = 0.0,
        ready: bool = False,
    ) -> list[Output]:
        """The ticket's payload is on every shard. Sent twice, it is answered twice and counted once."""
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        found = self._own(member, ticket, "commit")
        if found is not None:
            if found.state != "open":
                fate = found.fate or outputs.DispositionNotice(ticket, "pending")
                self._tell(member, fate)
            elif found.initialise:
                self._install(member, found, now)
            else:
                found.state, found.samples, found.loss = "pending", samples, loss
                self._count_commit(found, batch)
                self._record(entries.Commit(worker, ticket, batch, samples, loss, norm), now)
                self._decide(Commit(worker, ticket, samples, loss, norm), now)
                if found.state == "pending":
                    self._tell(member, outputs.DispositionNotice(ticket, "pending"))
            if ready and member.requested is None and not self.tickets.open_of(worker):
                return self._emit() + self.ready(worker, incarnation, now)
        self._watch(now)
        return self._emit()

    def abandon(self, worker: str, incarnation: int, ticket: int, reason: str, now: float) -> list[Output]:
        """The worker will not use the ticket. Abandoning a settled one (a cancelled one, say) is no news."""
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        found = self._own(member, ticket, "abandon")
        if found is not None and found.state == "open":
            member.enter("joined", now)
            self._record(entries.Abandon(worker, ticket, reason), now)
            self._settle(found, outputs.DispositionNotice(ticket, "dropped", reason=reason))
            if found.initialise:
                self._offer_initialisation(now)
            else:
                self._decide(Abandon(worker, ticket, reason), now)
        self._watch(now)
        return self._emit()

    def done(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The worker has no more data. Barriers shrink; when all are done the job is."""
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        opened = self.tickets.open_of(worker)
        if opened:
            self._refuse(
                member,
                f"{worker} said done while it holds ticket {opened[0].number}: "
                "expected its commit or abandon first",
                opened[0].number,
            )
        elif self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        elif member.state != "done":
            member.enter("done", now)
            member.requested = None
            self._record(entries.Done(worker), now)
            if member.playing:
                self._decide(Done(worker), now)
            else:
                self._start_when_complete(now)
            self._finish_when_done(now)
            if self.terms.stay and self.stopped is None:
                version = self.version
                self._tell(member, outputs.StopNotice("done; the servers stay", version, True, 0))
        self._watch(now)
        return self._emit()

    # Time and the outside world

    def tick(self, now: float) -> list[Output]:
        """Let time pass: give up on the absent, notice the end. Call at least once a second."""
        for member in self.roster.by_rank():
            if member.absent_since is not None and now - member.absent_since >= self.terms.grace:
                seconds = now - member.absent_since
                self._depart(member, f"connection lost for {seconds:.1f} s", now)
        self._finish_when_done(now)
        idle = self.terms.idle_timeout
        if self._empty_since is not None and idle > 0 and now - self._empty_since >= idle:
            self._stop(f"no worker for {idle:g} s", now, success=False, cause="abandoned")
        return self._emit()

    def stop(self, reason: str, now: float, *, success: bool, cause: str) -> list[Output]:
        """End the job from outside (a signal, a lost server)."""
        self._stop(reason, now, success=success, cause=cause)
        return self._emit()

    @property
    def over(self) -> bool:
        """The job has stopped and every worker has left."""
        return self.stopped is not None and not self.roster.present

    # Inside

    def _request(self, member: Member, now: float) -> None:
        member.requested = self.tickets.allocate()
        member.enter("waiting", now)
        if not self.initialised:
            self._offer_initialisation(now)
        elif not self.started:
            self._start_when_complete(now)
        else:
            self._play(member, now)
        self._watch(now)

    def _play(self, member: Member, now: float) -> None:
        """Bring a member's request before the policy."""
        if not member.playing:
            member.playing = True
            self._decide(Join(member.worker, member.rank), now)
        if member.requested is not None and self.stopped is None:
            self._decide(Ready(member.worker, member.requested), now)

    def _offer_initialisation(self, now: float) -> None:
        """The first that asks, by rank, may install version 0; nobody else while it tries."""
        if self.initialised or any(t.initialise for t in self.tickets.in_state("open")):
            return
        for member in self.roster.by_rank():
            if member.requested is not None:
                number, member.requested = member.requested, None
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

    def _start_when_complete(self, now: float) -> None:
        """The first grants go out together, so that a slow starter misses nothing."""
        if self.started or not self.initialised:
            return
        here = [m for m in self.roster.by_rank() if m.requested is not None or m.state == "done"]
        if len(here) < self.terms.workers:
            return
        self.started = True
        self._record(entries.Start(len(here)), now)
        asking = [m for m in here if m.requested is not None]
        for member in asking:
            member.playing = True
            self._decide(Join(member.worker, member.rank), now)
        for member in asking:
            self._play(member, now)

    def _depart(self, member: Member, reason: str, now: float) -> None:
        del self.roster.present[member.worker]
        if member.state != "done":
            self.roster.unfinished[member.worker] = now
        for ticket in self.tickets.open_of(member.worker):
            self._record(entries.Cancel(member.worker, ticket.number, f"{member.worker} left"), now)
            self._settle(
                ticket, outputs.DispositionNotice(ticket.number, "dropped", reason="left"), tell=False
            )
        self._record(entries.Leave(member.worker, reason), now)
        if not self.roster.present:
            self._empty_since = now
        if self.stopped is not None:
            return
        if member.playing:
            self._decide(Leave(member.worker, reason), now)
        self._offer_initialisation(now)
        self._finish_when_done(now)
        self._watch(now)

    def _finish_when_done(self, now: float) -> None:
        """Everyone present is done, and whoever left unfinished had time to come back."""
        if self.stopped is not None or not self.started or self.terms.stay:
            return
        present = self.roster.present.values()
        finished_before = not present and not self.roster.unfinished
        if not finished_before and (not present or any(m.state != "done" for m in present)):
            return
        since = max((m.since for m in present), default=now)
        since = max([since, *self.roster.unfinished.values()])
        if self.roster.unfinished and now - since < self.terms.worker_timeout:
            return
        self._stop("all workers are done", now, success=True, cause="done")
