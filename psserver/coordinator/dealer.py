"""Deals work units: requests that find none stand by until one is returned."""

from psserver.coordinator.driver import PolicyDriver
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.roster import Member
from psserver.coordinator.units import WorkTerms
from psserver.coordinator.work import WorkQueue
from psserver.decisions import entries
from psserver.policies import Done, Leave


class Dealer:
    """Stands between members' requests and the policy, in a job that deals work units.

    A member that asks when the queue is empty *stands by*: the log says `done`, and barriers shrink. When a part is
    returned, or the next epoch begins, the member that has stood by longest (under a policy by rank: the first)
    resumes: the log says `resume`, and the policy sees a newcomer.
    """

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle) -> None:
        self._ledger, self._job = ledger, ledger.job
        self._driver = driver
        self._lifecycle = lifecycle

    def declare(self, terms: WorkTerms | None, now: float) -> None:
        """Declare what the job deals from now on; None: nothing. Before version 0, or between phases."""
        ledger = self._ledger
        before = None if self._job.work is None else self._job.work.terms
        anew, self._job.undeclared = self._job.undeclared and terms is not None, False
        if terms == before and not anew:
            return
        assert not self._job.initialised or self._job.resting, (
            "work units are agreed on before a phase begins"
        )
        self._job.work = None if terms is None else WorkQueue(terms, self._driver.policy.local_rule.batches)
        entry = entries.Work(0, 0, 0)
        if self._job.work is not None and terms is not None:
            entry = entries.Work(terms.units, terms.epochs, self._job.work.parts, terms.data, terms.apart)
        ledger.record(entry, now)

    def promise(self, member: Member, now: float) -> bool:
        """Reserve a part for the member's request. False: there is none, so it stands by unless it holds a ticket."""
        queue = self._job.work
        if queue is None:
            return True
        # The member that ends an epoch begins the next one together with those on standby.
        meets = queue.between_epochs and bool(queue.standby)
        if not meets and queue.promise(member.worker, self._before(queue, member)):
            return True
        if member.worker not in self._job.tickets.opened:
            self._stand_by(queue, member, now)
        return False

    def _before(self, queue: WorkQueue, member: Member) -> int:
        """Count the workers that will need a unit before this member, if units are dealt by rank."""
        if not self._driver.policy.by_rank:
            return 0
        return sum(
            other.rank < member.rank
            and other.state != "done"
            and other.worker not in queue.held
            and other.worker not in queue.promised
            for other in self._job.roster.here()
        )

    def _stand_by(self, queue: WorkQueue, member: Member, now: float) -> None:
        ledger = self._ledger
        queue.standby[member.worker] = self._job.tickets.allocate()
        member.enter("done", now)
        self._job.roster.prepared.add(member.worker)
        ledger.record(entries.Done(member.worker), now)
        if member.known_to_policy:
            self._driver.decide(Done(member.worker, self._driver.time(now)), now)
        else:
            self._lifecycle.start_when_complete(now)
        self._lifecycle.finish_when_done(now)

    def resume_standby(self, now: float) -> None:
        """At the end of each input: resume members on standby while units are available, and detect the end."""
        queue = self._job.work
        if queue is None or self._job.stopped is not None:
            return
        while queue.standby and self._job.stopped is None:
            standby = [self._job.roster.present[worker] for worker in queue.standby]
            if self._driver.policy.by_rank:
                standby.sort(key=lambda each: each.rank)
            # At the beginning of an epoch each already has a unit.
            member = next((each for each in standby if each.worker in queue.held), standby[0])
            if member.worker not in queue.held:
                # Any member may take a returned part; fresh units belong to lower ranks, which will ask.
                before = 0 if queue.lost else self._before(queue, member)
                if queue.available <= before:
                    break
            self._resume(queue, member, now)
        if queue.complete and self._job.started:
            self._lifecycle.finish_work(now)

    def _resume(self, queue: WorkQueue, member: Member, now: float) -> None:
        ledger = self._ledger
        member.requested = queue.standby.pop(member.worker)
        queue.promise(member.worker)
        self._job.roster.prepared.discard(member.worker)
        member.enter("waiting", now)
        ledger.record(entries.Resume(member.worker), now)
        if member.known_to_policy:
            member.known_to_policy = False
            event = Leave(member.worker, "there was no work unit for it", self._driver.time(now))
            self._driver.decide(event, now)
        if not self._job.initialised:
            self._job.roster.prepared.add(member.worker)
            self._lifecycle.offer_initialisation(now)
        elif self._job.started:
            self._driver.request(member, now)
        else:
            self._job.roster.prepared.add(member.worker)
            self._lifecycle.start_when_complete(now)
