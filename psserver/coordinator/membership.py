"""Membership: joins, connections and departures."""

from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.inputs import JoinAsked
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.outputs import Declined, Joined, Kind
from psserver.coordinator.roster import Member
from psserver.coordinator.waits import waits
from psserver.decisions import entries
from psserver.policies import Leave
from pswire import protocol


class _NotNowError(ValueError):
    """A worker cannot become a member, for the reason in the text. `kind`: as in `Declined`."""

    def __init__(self, reason: str, kind: Kind = "refused") -> None:
        super().__init__(reason)
        self.kind = kind


class Membership:
    """Admits members, tracks their connections, and removes them."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle) -> None:
        self._ledger, self._job = ledger, ledger.job
        self._driver = driver
        self._lifecycle = lifecycle

    def join(self, asked: JoinAsked, now: float) -> Joined | Declined:
        """Do what `JoinAsked` says."""
        try:
            member = self._joined(asked, now)
        except _NotNowError as error:
            return Declined(str(error), error.kind)
        return Joined(member.worker, member.incarnation, member.rank)

    def _joined(self, asked: JoinAsked, now: float) -> Member:
        """Return the member, old or new. Raises _NotNowError, with nothing changed but what a policy has ended that
        failed as a former process left."""
        ledger, job, roster = self._ledger, self._job, self._job.roster
        worker, session, rank = asked.worker, asked.session, asked.rank
        known = roster.named(worker, rank)
        if known is not None and known.session == session:
            return known
        self._check_runs()
        if rank is None:
            rank = known.rank if known else roster.free_rank()
        worker = worker or (known.worker if known else self._name(rank))
        self._check_limits(worker)
        holder = roster.holder(rank)
        if holder is not None and holder.worker != worker:
            raise _NotNowError(
                f"task index {rank} belongs to worker {holder.worker!r}; {worker!r} needs another one "
                f"(the lowest free is {roster.free_rank()})"
            )
        agreed = self._agreed(worker, asked.function)
        if known is not None:
            if session in roster.tally(worker).sessions:
                raise _NotNowError(f"a newer session joined as {worker!r} while this one was away")
            refusal = f"{asked.by or 'another process'} joined as {worker!r}"
            ledger.notify(known, protocol.Refusal(refusal, fatal=True))
            self.depart(known, "superseded by a newer incarnation", now, replaced=True)
            self._check_runs()
        job.function = agreed
        # After a rollback: a process that took part in the finished phase.
        rests = job.resting and session in roster.tally(worker).sessions
        member = self._admit(worker, session, rank, now, asked.remembers, asked.computes)
        member.stays, member.used = asked.stays, asked.used
        # The tally has lost the tickets of former generations, whose batches the worker has used.
        tally = roster.tally(worker)
        tally.granted = max(tally.granted, asked.used)
        if rests:
            member.enter("done", now)
        return member

    def _check_runs(self) -> None:
        """Raise _NotNowError if the job has stopped."""
        stopped = self._job.stopped
        if stopped is not None:
            raise _NotNowError(
                f"the job is over: {stopped.reason}", "over" if stopped.in_order else "stopped"
            )

    def _agreed(self, worker: str, function: str) -> tuple[str, str]:
        """Return the first worker that named a digest, and this digest. Raises _NotNowError for another one."""
        roster, (first, ours) = self._job.roster, self._job.function
        if not function or function == ours:
            return first, ours
        trained = any(tally.committed for tally in roster.tallies.values())
        if not ours or not (trained or any(each.worker != worker for each in roster.here())):
            return worker, function
        raise _NotNowError(
            f"the model of worker {worker!r} computes something else than that of worker {first!r}, which came first: "
            "start all workers with the same script"
        )

    def _check_limits(self, worker: str) -> None:
        """Raise _NotNowError for a name that is not allowed or beyond the limit."""
        terms, roster = self._ledger.terms, self._job.roster
        if terms.allowed and worker not in terms.allowed:
            raise _NotNowError(
                f"worker {worker!r} is not among the names that this job allows (--allow-worker)"
            )
        if not terms.max_workers:
            return
        # A Join that never had a session, and has left, does not count.
        known = {name for name, tally in roster.tallies.items() if tally.arrived or name in roster.present}
        if worker not in known and len(known) >= terms.max_workers:
            raise _NotNowError(
                f"worker {worker!r} would be number {len(known) + 1}: this job takes {terms.max_workers} workers "
                "(--max-workers), of which those that left may come back under their names"
            )

    def _name(self, rank: int) -> str:
        """Name a worker that gave no name. It never supersedes another worker."""
        name = f"w{rank}"
        namesake = self._job.roster.present.get(name)
        if namesake is not None:
            raise _NotNowError(
                f"task index {rank} would be named {name!r}, which is the name of the worker with task index "
                f"{namesake.rank}: expected a name of its own for it (--name)"
            )
        return name

    def _admit(
        self, worker: str, session: str, rank: int, now: float, remembers: bool, computes: str
    ) -> Member:
        roster = self._job.roster
        tally = roster.tally(worker)
        member = Member(
            *(worker, tally.incarnations, rank, session, "joined", now),
            absent_since=now,
            computes=computes,
            remembers=remembers,
        )
        tally.incarnations += 1
        tally.joined(session)
        roster.weigh(worker)
        roster.add(member)
        forgets = self._forgotten(tally.committed, remembers)
        self._ledger.record(entries.Join(worker, member.incarnation, rank, forgets, computes), now)
        return member

    def _forgotten(self, committed: int, codec: bool) -> tuple[str, ...]:
        """Return which of a former incarnation's memories are lost, which the log must record."""
        if not committed:
            return ()
        rule = (entries.LOCAL_RULE,) if self._driver.policy.local_rule.remembers else ()
        return (*rule, entries.CODEC) if codec else rule

    def connect(self, member: Member, now: float) -> None:
        """Note that the session stream is up (again), and repeat what the worker may have missed."""
        ledger = self._ledger
        if member.ever_connected and member.absent_since is not None:
            ledger.record(entries.Back(member.worker), now)
        member.absent_since = None
        if self._job.first_session is None:
            self._job.first_session = now
        self._job.roster.connected(member)
        for ticket in self._job.tickets.recent_of(member.worker):
            if ticket.fate is not None and ticket.incarnation == member.incarnation:
                ledger.notify(member, ticket.fate)
        for ticket in self._job.tickets.open_of(member.worker):
            ledger.notify_grant(member, ticket)
        if self._job.stopped is not None:
            ledger.notify(member, ledger.stop_notice(member))
        elif self._job.resting and member.state == "done" and member.worker not in self._job.roster.prepared:
            ledger.notify(member, ledger.phase_notice())

    def disconnect(self, member: Member, now: float) -> None:
        """Note that the stream broke. Also after the stop, of which the worker may not know."""
        if member.absent_since is None:
            member.absent_since = now
            self._ledger.record(entries.Lost(member.worker), now)

    def expire(self, now: float) -> None:
        """Evict members whose connection has been broken for longer than the grace period, and live ones that do not
        do what the job waits for (`psserver.coordinator.waits`)."""
        for wait in list(waits(self._ledger, self._driver, now)):
            if now - wait.since >= wait.limit and wait.member.worker in self._job.roster.present:
                self.depart(wait.member, f"did not {wait.what} within {wait.limit:g} s", now)
        for member in self._job.roster.by_rank():
            if member.absent_since is not None and now - member.absent_since >= self._ledger.terms.grace:
                seconds = now - member.absent_since
                self.depart(member, f"connection lost for {seconds:.1f} s", now)

    def resume(self, rolled_back: int, now: float) -> None:
        """Remove the members of former processes, which may come back: their tallies stay."""
        ledger = self._ledger
        terms = ledger.terms
        ledger.record(entries.Restore(terms.job, self._job.version, terms.servers, rolled_back), now)
        ledger.reopen()
        self._job.resumed_at = now
        for member in self._job.roster.by_rank():
            self.depart(member, "the job goes on in new processes", now, kept=True)

    def depart(
        self, member: Member, reason: str, now: float, *, kept: bool = False, replaced: bool = False
    ) -> None:
        """Remove a member and cancel its tickets. `kept`: its work units stay reserved; `replaced`: another process
        takes its name at once."""
        ledger = self._ledger
        self._job.roster.remove(member, now, started=self._job.started, resting=self._job.resting)
        opened = self._job.tickets.open_of(member.worker)
        for ticket in opened:
            ledger.record(entries.Cancel(member.worker, ticket.number, f"{member.worker} left"), now)
            if not kept:
                ledger.deal_again(ticket)
            fate = protocol.Disposition(ticket.number, "dropped", reason="left")
            self._job.tickets.settle(ticket, "cancel", fate)
        if self._job.work is not None and kept:
            self._job.work.keep(member.worker, [t.part for t in opened if t.part is not None])
        elif self._job.work is not None:
            self._job.work.release(member.worker)
        ledger.record(entries.Leave(member.worker, reason), now)
        if self._job.stopped is not None:
            return
        if member.known_to_policy:
            self._driver.decide(Leave(member.worker, reason, self._driver.time(now)), now)
        self._lifecycle.offer_initialisation(now)
        if not replaced:
            self._lifecycle.finish_when_done(now)
        self._driver.check_deadlock(now)
