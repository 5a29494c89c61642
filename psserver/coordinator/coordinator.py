"""The coordinator's inputs: what workers say and what time does.

Every method is one input. It answers with outputs in order; afterwards the
state is consistent again. How policy decisions are carried out is in
`ruling`, beginning and end of a job are in `phases`.
"""

from psserver.coordinator import entries, outputs
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members import Member
from psserver.coordinator.outputs import JoinRefused, Output
from psserver.coordinator.terms import JobTerms
from psserver.coordinator.tickets import AHEAD, Ticket
from psserver.policies import Abandon, Commit, Done, Leave, Policy

__all__ = ["Coordinator", "JobTerms"]


class Coordinator(Lifecycle):
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
        local = policy.local_rule
        self._record(
            entries.Job(
                terms.job,
                {"name": policy.name, **policy.knobs},
                terms.optimizer,
                terms.servers,
                terms.workers,
                terms.seed,
                tensors=policy.tensors.config or None,
                local=None if local.plain else {"name": local.name, **local.knobs},
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
        known = self.roster.present.get(worker) if worker else None
        if known is None and not worker and rank is not None:
            known = self.roster.holder(rank)
        if known is not None and known.session == session:
            return known, []
        if self.stopped is not None:
            raise JoinRefused(f"the job is over: {self.stopped.reason}")
        if rank is None:
            rank = known.rank if known else self.roster.free_rank()
        worker = worker or (known.worker if known else self._name(rank))
        holder = self.roster.holder(rank)
        if holder is not None and holder.worker != worker:
            raise JoinRefused(
                f"task index {rank} belongs to worker {holder.worker!r}; {worker!r} needs another one "
                f"(the lowest free is {self.roster.free_rank()})"
            )
        if known is not None:
            if session in self.roster.tally(worker).sessions:
                raise JoinRefused(f"another process joined as {worker!r} while this one was away")
            self._tell(known, outputs.RefusalNotice(f"another process joined as {worker!r}", fatal=True))
            self._depart(known, "superseded by a newer incarnation", now)
        return self._admit(worker, session, rank, now), self._emit()

    def _name(self, rank: int) -> str:
        """The name of a worker that brought none. Nobody is superseded by it."""
        name = f"w{rank}"
        namesake = self.roster.present.get(name)
        if namesake is not None:
            raise JoinRefused(
                f"task index {rank} would be named {name!r}, which is the name of the worker with task index "
                f"{namesake.rank}: expected a name of its own for it (--name)"
            )
        return name

    def _admit(self, worker: str, session: str, rank: int, now: float) -> Member:
        tally = self.roster.tally(worker)
        member = Member(worker, tally.incarnations, rank, session, "joined", now, absent_since=now)
        tally.incarnations += 1
        tally.sessions.add(session)
        self.roster.add(member)
        self.roster.unfinished.pop(worker, None)
        self._empty_since = None
        self._record(entries.Join(worker, member.incarnation, rank), now)
        return member

    def stranger(self, worker: str, incarnation: int, session: str) -> str | None:
        """Why the process with this `session` is not that member; None when it is."""
        member = self._member(worker, incarnation)
        if member is not None and member.session == session:
            return None
        return self._unknown(worker, incarnation)

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
            self._tell_grant(member, ticket)
        if self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        return self._emit()

    def disconnect(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The stream broke. The worker may come back within the grace period (see `tick`)."""
        member = self._member(worker, incarnation)
        if member is not None and member.absent_since is None:
            # Also after the stop: it may not have heard of it.
            member.absent_since = now
            self._record(entries.Lost(worker), now)
        return self._emit()

    def leave(self, worker: str, incarnation: int, reason: str, now: float) -> list[Output]:
        """The worker says goodbye."""
        member = self._member(worker, incarnation)
        if member is not None:
            self._depart(member, reason, now)
            self._start_when_complete(now)
        return self._emit()

    # Work

    def ready(self, worker: str, incarnation: int, now: float, *, holding: int = 0) -> list[Output]:
        """The worker asks for its next ticket: it is idle, or works on ticket `holding` and wants the one
        after it ahead. While it holds such a one, it is told that one again. Where the policy grants nothing
        ahead, that is a wish without consequence: the worker asks again with its commit.
        """
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        self._ready(member, holding, now)
        return self._emit()

    def _ready(self, member: Member, holding: int, now: float) -> None:
        opened = self.tickets.open_of(member.worker)
        if self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        elif opened and opened[-1].number > holding:
            # Said again after a reconnection that the grant did not survive, or crossed it on the way.
            self._tell_grant(member, opened[-1])
        elif opened and not (self._ahead and member.playing and len(opened) < AHEAD):
            pass
        elif member.state == "done":
            if not holding:
                self._refuse(member, f"{member.worker} said ready after done: expected nothing more from it")
        elif member.requested is None:
            self._request(member, now)

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
        times: entries.Times = entries.UNTOLD,
    ) -> list[Output]:
        """The ticket's payload is on every shard. Sent twice, it is answered twice and counted once.

        `times` are for the log; nothing is decided by them.
        """
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
                self.tickets.commit(found)
                found.samples, found.loss = samples, loss
                self._count_commit(found, batch)
                self._record(entries.Commit(worker, ticket, batch, samples, loss, norm, *times), now)
                if member.requested is not None:
                    self._rest(member, now)
                # The time that the log tells: it is written in whole microseconds.
                t = round(now - self._began, 6)
                self._decide(Commit(worker, ticket, samples, loss, norm, t), now)
                if found.fate is None:
                    self._tell(member, outputs.DispositionNotice(ticket, "pending"))
            if ready and member.requested is None and member.state != "done":
                self._ready(member, ticket, now)
                return self._emit()
        self._watch(now)
        return self._emit()

    def abandon(self, worker: str, incarnation: int, ticket: int, reason: str, now: float) -> list[Output]:
        """The worker will not use the ticket. Abandoning a settled one (a cancelled one, say) is no news."""
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        found = self._own(member, ticket, "abandon")
        if found is not None and found.state == "open":
            self._give_up(member, found, reason, now)
        self._watch(now)
        return self._emit()

    def _give_up(self, member: Member, ticket: Ticket, reason: str, now: float) -> None:
        self._record(entries.Abandon(member.worker, ticket.number, reason), now)
        self._settle(ticket, outputs.DispositionNotice(ticket.number, "dropped", reason=reason))
        self._rest(member, now)
        if ticket.initialise:
            self._offer_initialisation(now)
        else:
            self._decide(Abandon(member.worker, ticket.number, reason), now)

    def done(self, worker: str, incarnation: int, now: float) -> list[Output]:
        """The worker has no more data. Barriers shrink; when all are done the job is.

        A ticket that it still holds is abandoned: a ready that it repeated after
        a reconnection may have brought one that it never wanted.
        """
        member = self._member(worker, incarnation)
        if member is None:
            return self._stranger(worker, incarnation)
        for ticket in self.tickets.open_of(worker):
            self._give_up(member, ticket, "done", now)
        if self.stopped is not None:
            self._tell(member, self._stop_notice(member))
        elif member.state != "done":
            member.enter("done", now)
            member.requested = None
            self.roster.prepared.add(member.worker)
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
        self._start_when_complete(now)
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
        self._rest(member, now)
        if not self.started:
            self.roster.prepared.add(member.worker)
        if not self.initialised:
            self._offer_initialisation(now)
        elif not self.started:
            self._start_when_complete(now)
        else:
            self._play(member, now)
        self._watch(now)

    def _depart(self, member: Member, reason: str, now: float) -> None:
        self.roster.remove(member)
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
