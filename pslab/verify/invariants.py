"""What must hold after every single step, whatever the schedule; of a built-in policy its own `Facts`, too."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psserver.coordinator import Coordinator, Record
from psserver.policies import facts
from pswire.decisions import entries
from pswire.decisions.entries import NONFINITE, Entry, Part


class InvariantViolation(AssertionError):
    """A promise is broken; the sentence says which, and by what."""


def expect(holds: bool, sentence: str) -> None:
    """Raise InvariantViolation with the sentence unless it holds."""
    if not holds:
        raise InvariantViolation(sentence)


class FactsCheck:
    """Of the policy `name` with these knobs in a job of `workers`; a policy of one's own makes none.

    Methods raise InvariantViolation.
    """

    def __init__(self, name: str, knobs: Mapping[str, object], workers: int) -> None:
        self._name = name
        self._facts = facts(name, knobs, workers)

    @property
    def explained(self) -> bool:
        """It names who can end a wait; of others it is enough that they say what is waited for."""
        return self._facts is not None

    def applied(self, parts: Sequence[Part]) -> None:
        """The contributions of one update."""
        if self._facts is None:
            return
        name, known = self._name, self._facts
        staleness, workers = [p.staleness for p in parts], [p.worker for p in parts]
        if known.size is not None:
            expect(
                len(workers) <= known.size,
                f"{name} applies at most {known.size} gradients at a time, here {len(workers)}",
            )
        if known.distinct:
            expect(len(set(workers)) == len(workers), f"{name} takes one gradient per worker: {workers}")
        expect(len(workers) >= known.fewest, f"{name} needs {known.fewest} gradients, got {workers}")
        bound = known.max_staleness
        if bound is not None:
            expect(max(staleness) <= bound, f"{name} applies staleness {staleness}, bound {bound}")

    def dropped(self, staleness: int, reason: str, pending: int) -> None:
        """`pending`: contributions that are committed and undecided, without this one."""
        if self._facts is None or reason in ("stopped", NONFINITE):
            return
        name, known = self._name, self._facts
        if reason == "too few":
            # Those before it, too: they are dropped together.
            enough = pending + 1 >= known.fewest
            expect(staleness == 0 and not enough, f"{name} drops {pending + 1} as too few")
            return
        if reason == "no samples":
            expect(known.by_samples, f"{name} drops a gradient for want of samples, which it does not count")
            return
        bound = known.max_staleness
        expect(
            reason == "stale" and known.drops and bound is not None and staleness > bound,
            f"{name} drops a gradient of staleness {staleness}: {reason}",
        )

    def started(self, worker: str, ahead: int) -> None:
        """`ahead`: clocks between the worker, which is granted a ticket, and the slowest."""
        if self._facts is None or self._facts.max_lead is None:
            return
        slack = self._facts.max_lead
        expect(ahead <= slack, f"{worker} starts {ahead} clocks ahead of the slowest, slack {slack}")


@dataclass
class Guard:
    """Reads the decision log as it grows and keeps books of its own; raises Breach.

    `policy`: as it was asked for. A built-in policy is held to its own facts besides.
    """

    policy: str
    knobs: Mapping[str, object]
    workers: int
    index: int = 0
    version: int = 0
    time: float = 0.0
    stopped: bool = False
    # Tickets that were granted ahead.
    ahead: int = 0
    # ticket -> (worker, base); committed ones with their worker; tickets that were ever granted
    open: dict[int, tuple[str, int]] = field(default_factory=dict)
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    committed: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    # Units completed by each worker that plays, as the policy counts them.
    clocks: dict[str, int] = field(default_factory=dict)
    # Grants taken back since anything else became of one.
    wasted_grants: int = 0
    # The first explanation that the coordinator refused. For a policy that is not built in this is no violation
    # yet: what it hides may follow, and says more.
    complaint: str = ""
    facts_check: FactsCheck = field(init=False)

    def __post_init__(self) -> None:
        self.facts_check = FactsCheck(self.policy, self.knobs, self.workers)

    def read(self, record: Record) -> None:
        expect(record.index == self.index, f"entry {record.index} follows {self.index - 1}")
        expect(record.t >= self.time, f"time goes back from {self.time} to {record.t}")
        self.index, self.time = record.index + 1, record.t
        self._entry(record.entry)

    def _entry(self, entry: Entry) -> None:
        if isinstance(entry, entries.Commit | entries.Leave | entries.Done | entries.Abandon | entries.Join):
            self.wasted_grants = 0
        match entry:
            case entries.Grant(worker, ticket, version, ahead=ahead):
                expect(not self.stopped, f"ticket {ticket} is granted after the stop")
                expect(version == self.version, f"ticket {ticket} is granted version {version}")
                self._open(worker, ticket, ahead=bool(ahead))
                self.ahead += bool(ahead)
                self._clock(worker)
            case entries.Initialise(worker, ticket):
                self._open(worker, ticket)
            case entries.Install(worker, ticket):
                self._close(worker, ticket)
            case entries.Commit(worker, ticket):
                expect(not self.stopped, f"ticket {ticket} is committed after the stop")
                self.pending[ticket] = self._close(worker, ticket)
                self.committed[worker] += 1
                if worker in self.clocks:
                    self.clocks[worker] += 1
            case entries.Apply(version, _, _, parts):
                self._apply(version, parts)
            case entries.Refuse(version):
                expect(version == self.version + 1, f"version {version} is refused after {self.version}")
            case entries.Drop(worker, ticket, staleness, reason):
                self._drop(worker, ticket, staleness, reason)
            case entries.Cancel(worker, ticket, _):
                self._close(worker, ticket)
                self._cancelled(worker)
            case entries.Abandon(worker, ticket):
                self._close(worker, ticket)
            case entries.Leave(worker) | entries.Done(worker):
                held = [ticket for ticket, (owner, _) in self.open.items() if owner == worker]
                expect(not held, f"{worker} is gone or done, and holds ticket {held}")
                self.clocks.pop(worker, None)
            case entries.Stop(_, version, _):
                expect(not self.stopped and version == self.version, f"a second stop, or one at {version}")
                expect(not self.open and not self.pending, f"left undecided: {self.open or self.pending}")
                self.stopped = True

    def _open(self, worker: str, ticket: int, *, ahead: bool = False) -> None:
        expect(ticket not in self.seen, f"ticket {ticket} is granted a second time")
        held = [number for number, (owner, _) in self.open.items() if owner == worker]
        expect(len(held) == ahead, f"{worker} is granted ticket {ticket} and holds {held}")
        self.seen.add(ticket)
        self.open[ticket] = (worker, self.version)

    def _close(self, worker: str, ticket: int) -> tuple[str, int]:
        found = self.open.pop(ticket, None)
        if found is None or found[0] != worker:
            raise InvariantViolation(f"ticket {ticket} of {worker} is not open: {found}")
        return found

    def _settle(self, worker: str, ticket: int, base: int) -> None:
        found = self.pending.pop(ticket, None)
        expect(
            found == (worker, base), f"ticket {ticket} of {worker} from version {base} is settled: {found}"
        )

    def _apply(self, version: int, parts: tuple[entries.Part, ...]) -> None:
        expect(not self.stopped and version == self.version + 1, f"version {version} after {self.version}")
        for part in parts:
            self._settle(part.worker, part.ticket, part.base)
            expect(part.staleness == self.version - part.base, f"wrong staleness: {part}")
            self.applied[part.worker] += 1
        self.version = version
        self.facts_check.applied(parts)

    def _drop(self, worker: str, ticket: int, staleness: int, reason: str) -> None:
        self._settle(worker, ticket, self.version - staleness)
        self.dropped[worker] += 1
        self.facts_check.dropped(staleness, reason, len(self.pending))

    def _cancelled(self, worker: str) -> None:
        """A policy may take grants back, one of each worker at a time; going on like that is getting nowhere."""
        self.wasted_grants += 1
        expect(
            self.wasted_grants <= 2 * max(1, len(self.clocks)),
            f"{worker} and others are granted tickets that are cancelled at once: {self.wasted_grants} cancels, "
            "and nobody has committed, joined, left or given up anything meanwhile",
        )

    def _clock(self, worker: str) -> None:
        slowest = min(self.clocks.values(), default=0)
        clock = self.clocks.setdefault(worker, slowest)
        self.facts_check.started(worker, clock - slowest)

    # Between the log and the coordinator's own memory

    def compare(self, coordinator: Coordinator) -> None:
        expect(coordinator.version == self.version, "the coordinator counts other versions")
        expect(coordinator.entries == self.index, "the coordinator counts other entries")
        live = coordinator.tickets.live
        if live.keys() != self.open.keys() | self.pending.keys():
            raise InvariantViolation(
                f"a ticket is lost: {[*live]} are live, {[*self.open, *self.pending]} should be"
            )
        waiting = Counter(worker for worker, _ in self.pending.values())
        for worker, tally in coordinator.roster.tallies.items():
            if not (
                tally.committed == self.committed[worker]
                and tally.applied == self.applied[worker] == tally.staleness.total()
                and tally.dropped == self.dropped[worker]
                and tally.committed == tally.applied + tally.dropped + waiting[worker]
            ):
                raise InvariantViolation(
                    f"contributions of {worker} do not add up: {tally}, {waiting[worker]} pending"
                )
        self._nobody_waits_without_reason(coordinator)

    def _nobody_waits_without_reason(self, coordinator: Coordinator) -> None:
        """Who waits is told why, and among those who can end it is one who does not wait itself."""
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
        """What is wrong with the policy's explanation; empty when it is good."""
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
        named = ", ".join(map(str, releasers)) or "nobody"
        return (
            f"explain({who!r}) says that {named} can end its wait for {event}: "
            "expected somebody who is here and does not wait"
        )
