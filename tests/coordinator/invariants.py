"""What must hold after every single step, whatever the schedule."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from psserver.coordinator import Coordinator, Record, entries
from psserver.coordinator.entries import Entry


@dataclass
class Guard:
    """Reads the decision log as it grows and keeps books of its own; any breach is an AssertionError."""

    policy: str
    knobs: Mapping[str, object]
    index: int = 0
    version: int = 0
    time: float = 0.0
    stopped: bool = False
    # ticket -> (worker, base); committed ones with their worker; tickets that were ever granted
    open: dict[int, tuple[str, int]] = field(default_factory=dict)
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    committed: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    # Units completed by each worker that plays, as the policy counts them.
    clocks: dict[str, int] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        assert record.index == self.index, "indices are contiguous"
        assert record.t >= self.time, "time does not go back"
        self.index, self.time = record.index + 1, record.t
        self._entry(record.entry)

    def _entry(self, entry: Entry) -> None:
        match entry:
            case entries.Grant(worker, ticket, version):
                assert not self.stopped and version == self.version
                self._open(worker, ticket)
                self._clock(worker)
            case entries.Initialise(worker, ticket):
                self._open(worker, ticket)
            case entries.Install(_, ticket):
                del self.open[ticket]
            case entries.Commit(worker, ticket):
                assert not self.stopped
                assert self.open[ticket][0] == worker
                self.pending[ticket] = self.open.pop(ticket)
                self.committed[worker] += 1
                if worker in self.clocks:
                    self.clocks[worker] += 1
            case entries.Apply(version, _, _, parts):
                self._apply(version, parts)
            case entries.Drop(worker, ticket, staleness, reason):
                owner, base = self.pending.pop(ticket)
                assert (owner, self.version - base) == (worker, staleness)
                self.dropped[worker] += 1
                self._drop(staleness, reason)
            case entries.Cancel(worker, ticket) | entries.Abandon(worker, ticket):
                assert self.open.pop(ticket)[0] == worker
            case entries.Leave(worker):
                assert all(owner != worker for owner, _ in self.open.values())
                self.clocks.pop(worker, None)
            case entries.Done(worker):
                assert all(owner != worker for owner, _ in self.open.values())
                self.clocks.pop(worker, None)
            case entries.Stop(_, version, _):
                assert not self.stopped and version == self.version
                assert not self.open and not self.pending, "nothing is left undecided"
                self.stopped = True

    def _open(self, worker: str, ticket: int) -> None:
        assert ticket not in self.seen, "a ticket is granted once"
        assert all(owner != worker for owner, _ in self.open.values()), "one open ticket per worker"
        self.seen.add(ticket)
        self.open[ticket] = (worker, self.version)

    def _apply(self, version: int, parts: tuple[entries.AppliedPart, ...]) -> None:
        assert not self.stopped and version == self.version + 1
        for part in parts:
            # A ticket that is not pending, or is named twice, is a KeyError here.
            assert self.pending.pop(part.ticket) == (part.worker, part.base)
            assert part.staleness == self.version - part.base
            self.applied[part.worker] += 1
        self.version = version
        self._guarantee([part.staleness for part in parts], [part.worker for part in parts])

    # What the policies promise

    def _guarantee(self, staleness: list[int], workers: list[str]) -> None:
        match self.policy:
            case "sync":
                assert set(staleness) == {0} and len(set(workers)) == len(workers)
            case "async" | "ssp" | "dssp" | "delay-adaptive" | "ringmaster" | "dc-asgd":
                assert len(workers) == 1
            case "k-sync" | "k-async":
                assert len(set(workers)) == len(workers)
        bound = self._bound()
        assert bound is None or max(staleness) <= bound
        if self.knobs.get("on_stale") != "block" and "aggregate" in self.knobs:
            assert isinstance(size := self.knobs["aggregate"], int) and len(workers) <= size

    def _bound(self) -> int | None:
        """The largest staleness that may be applied."""
        if self.policy in ("sync", "k-sync", "k-batch-sync", "rennala"):
            return 0
        if self.policy == "bounded" and self.knobs["on_stale"] in ("drop", "block"):
            assert isinstance(bound := self.knobs["max_staleness"], int)
            return bound
        if self.policy == "ringmaster":
            assert isinstance(threshold := self.knobs["threshold"], int)
            return threshold - 1
        return None

    def _drop(self, staleness: int, reason: str) -> None:
        if reason == "stopped":
            return
        assert reason == "stale"
        bound = self._bound()
        assert bound is not None and staleness > bound
        how = [self.policy, *(self.knobs[k] for k in ("on_stale", "late", "stops") if k in self.knobs)]
        assert how in (["bounded", "drop"], ["k-sync", "drop"], ["rennala"], ["ringmaster", False])

    def _clock(self, worker: str) -> None:
        slowest = min(self.clocks.values(), default=0)
        clock = self.clocks.setdefault(worker, slowest)
        if self.policy in ("ssp", "dssp") and not self.knobs.get("literal"):
            slack = self.knobs["slack" if self.policy == "ssp" else "upper"]
            assert isinstance(slack, int) and clock - slowest <= slack

    # Between the log and the coordinator's own memory

    def compare(self, coordinator: Coordinator) -> None:
        assert coordinator.version == self.version
        assert coordinator.entries == self.index
        live = coordinator.tickets.live
        assert live.keys() == self.open.keys() | self.pending.keys()
        waiting = Counter(worker for worker, _ in self.pending.values())
        for worker, tally in coordinator.roster.tallies.items():
            assert tally.committed == self.committed[worker]
            assert tally.applied == self.applied[worker] == tally.staleness.total()
            assert tally.dropped == self.dropped[worker]
            assert tally.committed == tally.applied + tally.dropped + waiting[worker]
        self._nobody_waits_in_vain(coordinator)

    def _nobody_waits_in_vain(self, coordinator: Coordinator) -> None:
        """Who waits is told why, and among those who can end it is one who does not wait itself."""
        if not coordinator.started or coordinator.stopped is not None:
            return
        present = coordinator.roster.present
        for member in present.values():
            if member.requested is None:
                continue
            assert member.state == "waiting"
            waiting = coordinator.policy.explain(member.worker)
            assert waiting is not None and waiting.event
            free = [w for w in waiting.releasers if w in present and present[w].requested is None]
            assert free, f"{member.worker} waits for {waiting}"
