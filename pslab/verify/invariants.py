"""Invariants that hold after every step of every schedule, and the `Facts` of a built-in policy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pslab.check.changes import Controllers
from pslab.check.clocks import Clocks
from pslab.runs.fold import COMMITTED, OPEN, Fold, Ticket
from pslab.runs.log import Line
from psserver.coordinator import Coordinator, Record
from psserver.policies import facts
from pswire.decisions import entries
from pswire.decisions.entries import NONFINITE, REPLACED, Entry, Part


class InvariantViolation(AssertionError):
    """A promise is broken; the sentence says which, and by what."""


def expect(holds: bool, sentence: str) -> None:
    """Raise InvariantViolation with the sentence unless it holds."""
    if not holds:
        raise InvariantViolation(sentence)


class FactsCheck:
    """The facts of policy `name` with these knobs, in a job of `workers`. A policy that is not built in has none.

    `former`: tickets that are left from before it took over, for which it answers only in part. Methods raise
    InvariantViolation.
    """

    def __init__(
        self, name: str, knobs: Mapping[str, object], workers: int, former: frozenset[int] = frozenset()
    ) -> None:
        self.former = former
        self._name = name
        self._facts = facts(name, knobs, workers)

    @property
    def explained(self) -> bool:
        """True if the policy must name who can end a wait; a policy without facts need only say what it waits for."""
        return self._facts is not None

    @property
    def bounds_clocks(self) -> bool:
        """True if the policy bounds how far one worker's clock is ahead of another's."""
        return self._facts is not None and self._facts.max_lead is not None

    def applied(self, parts: Sequence[Part]) -> None:
        """Check the contributions of one update."""
        if self._facts is None:
            return
        name, known = self._name, self._facts
        workers = [p.worker for p in parts]
        staleness = [p.staleness for p in parts if p.ticket not in self.former]
        if known.size is not None and not self.former:
            expect(
                len(workers) <= known.size,
                f"{name} applies at most {known.size} gradients at a time, here {len(workers)}",
            )
        if known.distinct and not self.former:
            expect(len(set(workers)) == len(workers), f"{name} takes one gradient per worker: {workers}")
        expect(len(workers) >= known.fewest, f"{name} needs {known.fewest} gradients, got {workers}")
        bound = known.max_staleness
        if bound is not None:
            expect(max(staleness, default=0) <= bound, f"{name} applies staleness {staleness}, bound {bound}")

    def dropped(self, ticket: int, staleness: int, reason: str, pending: int) -> None:
        """Check a drop. `pending`: committed contributions without a fate, not counting this one."""
        if self._facts is None or reason in ("stopped", NONFINITE, REPLACED):
            return
        name, known = self._name, self._facts
        if reason == "too few":
            # Dropped together with the others that are pending.
            enough = pending + 1 >= known.fewest
            expect(staleness == 0 and not enough, f"{name} drops {pending + 1} as too few")
            return
        if reason == "no samples":
            expect(
                known.by_samples, f"{name} drops a gradient for want of samples, but does not count samples"
            )
            return
        bound = known.max_staleness
        expect(
            reason == "stale"
            and (known.drops or ticket in self.former)
            and bound is not None
            and staleness > bound,
            f"{name} drops a gradient of staleness {staleness}: {reason}",
        )

    def started(self, worker: str, ahead: int) -> None:
        """Check a grant. `ahead`: clocks between the worker and the slowest one."""
        if self._facts is None or self._facts.max_lead is None:
            return
        slack = self._facts.max_lead
        expect(ahead <= slack, f"{worker} starts {ahead} clocks ahead of the slowest, slack {slack}")


class Guard:
    """Reads the decision log as it grows, and compares each entry and the coordinator with its own fold of the log.

    `policy`: the name that was asked for. A built-in policy must also keep its own facts. Methods raise
    InvariantViolation.
    """

    def __init__(self, policy: str, knobs: Mapping[str, object], workers: int) -> None:
        self.log = Fold(remember=True)
        self.facts_check = FactsCheck(policy, knobs, workers)
        self._workers = workers
        self._controllers = Controllers()
        # The number of tickets that were granted ahead.
        self.ahead = 0
        self.clocks = Clocks()
        # Cancels since a worker last committed, joined, left or gave something up.
        self.wasted_grants = 0
        # The first explanation of a wait that was not acceptable. For a policy that is not built in it is reported
        # only at the end: a fault that says more may follow.
        self.complaint = ""
        self._time = 0.0

    def read(self, record: Record) -> None:
        """Check the next entry of the log."""
        log = self.log
        expect(record.index == log.entries, f"entry {record.index} follows {log.entries - 1}")
        expect(record.t >= self._time, f"time goes back from {self._time} to {record.t}")
        self._time = record.t
        self._entry(record.entry)
        line = Line(record.index + 1, record.index, record.t, record.entry.kind, record.entry, {})
        for sentence in self._controllers.see(line, log):
            expect(False, sentence)
        log.see(record.entry, record.t)

    def _entry(self, entry: Entry) -> None:
        log, stopped, current = self.log, self.log.stop is not None, self.log.versions
        self.clocks.see(entry)
        if isinstance(entry, entries.Commit | entries.Leave | entries.Done | entries.Abandon | entries.Join):
            self.wasted_grants = 0
        match entry:
            case entries.Grant(worker, ticket, version, ahead=ahead):
                expect(not stopped, f"ticket {ticket} is granted after the stop")
                expect(version == current, f"ticket {ticket} is granted version {version}")
                self._check_grant(worker, ticket, ahead=bool(ahead))
                self.ahead += bool(ahead)
                self.facts_check.started(worker, self.clocks.lead(worker))
            case entries.Initialise(worker, ticket):
                self._check_grant(worker, ticket, ahead=False)
            case entries.Install(worker, ticket) | entries.Abandon(worker, ticket):
                self._check_open(worker, ticket)
            case entries.Commit(worker, ticket):
                expect(not stopped, f"ticket {ticket} is committed after the stop")
                self._check_open(worker, ticket)
            case entries.Apply(version, _, _, parts):
                expect(not stopped and version == current + 1, f"version {version} after {current}")
                self._check_parts(parts)
            case entries.Refuse(version):
                expect(version == current + 1, f"version {version} is refused after {current}")
            case entries.Drop(worker, ticket, staleness, reason):
                self._check_pending(worker, ticket, current - staleness)
                others = sum(held.state == COMMITTED for held in log.held.values()) - 1
                self.facts_check.dropped(ticket, staleness, reason, others)
            case entries.Cancel(worker, ticket, _):
                self._check_open(worker, ticket)
                self._cancelled(worker)
            case entries.Leave(worker) | entries.Done(worker):
                held = [ticket.number for ticket in log.open_of(worker)]
                expect(not held, f"{worker} is gone or done, and holds ticket {held}")
            case entries.Policy(policy):
                self._changed(dict(policy))
            case entries.Settled():
                left = self.facts_check.former & log.held.keys()
                expect(
                    not left,
                    f"the policy settles, and tickets {sorted(left)} are left from before its change",
                )
                self.facts_check.former = frozenset()
            case entries.Timer(tag, at):
                expect(not stopped, f"timer {tag} fires after the stop")
                expect(round(self._time * 1e6) >= at, f"timer {tag} fires before {at} us")
            case entries.Stop(_, version, _):
                expect(not stopped and version == current, f"a second stop, or one at {version}")
                expect(not log.held, f"left undecided: {list(log.held)}")

    def _changed(self, policy: dict[str, Any]) -> None:
        """Check a change of the policy, and hold the new one to its facts."""
        log = self.log
        waiting = [ticket.number for ticket in log.held.values() if ticket.state == COMMITTED]
        expect(not waiting, f"the policy changes while tickets {waiting} wait for an update")
        name, former = policy.pop("name"), frozenset(log.held)
        bounded = self.facts_check.bounds_clocks
        self.facts_check = FactsCheck(name, policy, self._workers, former)
        if not (bounded and self.facts_check.bounds_clocks):
            self.clocks = Clocks(self.clocks.present)

    def _check_grant(self, worker: str, ticket: int, *, ahead: bool) -> None:
        expect(ticket not in self.log.tickets, f"ticket {ticket} is granted a second time")
        held = [ticket.number for ticket in self.log.open_of(worker)]
        expect(len(held) == ahead, f"{worker} is granted ticket {ticket} and holds {held}")

    def _check_open(self, worker: str, number: int) -> None:
        ticket = self._held(worker, number)
        if ticket is None or ticket.state != OPEN:
            raise InvariantViolation(f"ticket {number} of {worker} is not open: {ticket}")

    def _check_pending(self, worker: str, number: int, base: int) -> None:
        ticket = self._held(worker, number)
        pending = ticket is not None and ticket.state == COMMITTED and ticket.base == base
        expect(pending, f"ticket {number} of {worker} from version {base} is settled: {ticket}")

    def _held(self, worker: str, number: int) -> Ticket | None:
        ticket = self.log.held.get(number)
        return ticket if ticket is not None and ticket.worker == worker else None

    def _check_parts(self, parts: tuple[Part, ...]) -> None:
        tickets = [part.ticket for part in parts]
        expect(len({*tickets}) == len(tickets), f"an update has a ticket twice: {tickets}")
        for part in parts:
            self._check_pending(part.worker, part.ticket, part.base)
            expect(part.staleness == self.log.versions - part.base, f"wrong staleness: {part}")
        self.facts_check.applied(parts)

    def _cancelled(self, worker: str) -> None:
        """Count a cancelled grant. A policy may cancel one grant of each worker at a time; more than that is no
        progress."""
        self.wasted_grants += 1
        expect(
            self.wasted_grants <= 2 * max(1, len(self.clocks.present)),
            f"{worker} and others are granted tickets that are cancelled at once: {self.wasted_grants} cancels, "
            "and nobody has committed, joined, left or given up anything meanwhile",
        )

    # The log and the coordinator's own state

    def compare(self, coordinator: Coordinator) -> None:
        """Check the coordinator's state after a step, once its entries were read."""
        log = self.log
        expect(coordinator.version == log.versions, "the coordinator counts other versions")
        expect(coordinator.entries == log.entries, "the coordinator counts other entries")
        live = coordinator.tickets.live
        if live.keys() != log.held.keys():
            raise InvariantViolation(f"a ticket is lost: {[*live]} are live, {[*log.held]} should be")
        waiting = Counter(ticket.worker for ticket in log.held.values() if ticket.state == COMMITTED)
        for worker, tally in coordinator.roster.tallies.items():
            if not (
                tally.committed == log.committed[worker]
                and tally.applied == log.applied[worker] == tally.staleness.total()
                and tally.dropped == log.dropped[worker]
                and tally.committed == tally.applied + tally.dropped + waiting[worker]
            ):
                raise InvariantViolation(
                    f"contributions of {worker} do not add up: {tally}, {waiting[worker]} pending"
                )
        self._nobody_waits_without_reason(coordinator)

    def _nobody_waits_without_reason(self, coordinator: Coordinator) -> None:
        """Every wait has a reason, and at least one worker that can end it does not wait itself."""
        if not coordinator.started or coordinator.stopped is not None:
            return
        present = coordinator.roster.present
        for member in present.values():
            if member.requested is None:
                continue
            who = member.worker
            if coordinator.tickets.open_of(who):
                expect(member.state == "computing", f"{who} asked ahead and is {member.state}")
                continue
            expect(member.state == "waiting", f"{who} asked and is {member.state}")
            complaint = self._unexplained(coordinator, who)
            if self.facts_check.explained:
                expect(not complaint, complaint)
            self.complaint = self.complaint or complaint

    def _unexplained(self, coordinator: Coordinator, who: str) -> str:
        """Return what is wrong with the policy's explanation; empty if nothing is."""
        present = coordinator.roster.present
        try:
            waiting = coordinator.policy.explain(who)
            event, releasers = (waiting.event, waiting.releasers) if waiting is not None else ("", ())
            here = [w for w in releasers if w in present]
            free = [w for w in here if present[w].requested is None or coordinator.tickets.open_of(w)]
        except Exception as error:
            return f"explain({who!r}) failed with {type(error).__name__}: {error}"
        if not event:
            return f"explain({who!r}) is {waiting}, while {who} waits: expected what it waits for"
        if free or (not releasers and not self.facts_check.explained):
            return ""
        if waiting is not None and waiting.timer and coordinator.remaining(waiting.timer, 0.0) is not None:
            return ""
        named = ", ".join(map(str, releasers)) or "nobody"
        return (
            f"explain({who!r}) says that {named} can end its wait for {event}: "
            "expected somebody who is here and does not wait"
        )
