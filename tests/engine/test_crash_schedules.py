"""Servers crash at any step and go back to their newest checkpoint; workers stay up. Engines, the real coordinator.

In the log that is left every batch of every worker is committed once; no two generations give tickets one number.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.protocol_adapter import deliver, event_of
from psserver.coordinator import Coordinator, CoordinatorState, JobTerms, Output, Record, Send, entries
from psserver.coordinator.state import reopened
from psserver.policies import build
from psworker.engine import ClientEngine, Commit, Event, Request
from psworker.errors import Voided
from tests.repetitions import repetitions, seeds

WORKERS, BATCHES, TIMEOUT = 2, 8, 3.0
POLICIES: list[tuple[str, dict[str, object]]] = [
    ("async", {}),
    ("sync", {}),
    ("ssp", {"slack": 1}),
    ("bounded", {"aggregate": 2, "max_staleness": 1, "on_stale": "block"}),
]


@dataclass
class Worker:
    """A loop of numbered batches, as `psworker.loop` goes through them."""

    name: str
    engine: ClientEngine = field(default_factory=ClientEngine)
    member: tuple[int, int] | None = None
    connected: bool = False
    next_batch: int = 0
    batch: int = 0
    initialise: bool = False
    broken: Commit | None = None
    up: deque[Request] = field(default_factory=deque)
    down: deque[Event] = field(default_factory=deque)


class Servers:
    """`crash` is `kill -9` of all: what was saved is left, and a checkpoint of which a part was missing is none."""

    def __init__(self, policy: str, knobs: dict[str, object], seed: int) -> None:
        self.policy, self.knobs, self.random = policy, knobs, Random(seed)
        self.now, self.generation = 0.0, 0
        self.log: list[Record] = []
        self.void: list[Record] = []
        self.due: CoordinatorState | None = None
        self.saved: list[tuple[int, CoordinatorState]] = []
        self.workers = [Worker(f"w{n}") for n in range(WORKERS)]
        self.coordinator = self.new()
        self.take(self.coordinator.opening())

    def new(self) -> Coordinator:
        terms = JobTerms(
            "job",
            {"name": "sgd"},
            workers=WORKERS,
            worker_timeout=TIMEOUT,
            checkpoint_versions=2,
            generation=self.generation,
            regather=2 * TIMEOUT,
        )
        return Coordinator(terms, build(self.policy, self.knobs, WORKERS), self.now)

    def take(self, outputs: list[Output], diverted: str = "") -> list[Event]:
        answer = []
        for output in outputs:
            if isinstance(output, Record):
                self.log.append(output)
            elif isinstance(output, Send):
                worker = next(w for w in self.workers if w.name == output.worker)
                if worker.member == (self.generation, output.incarnation):
                    event = event_of(output.notice, self.now)
                    if output.worker == diverted:
                        answer.append(event)
                    elif worker.connected:
                        worker.down.append(event)
        if outputs and isinstance(outputs[-1], Record) and isinstance(outputs[-1].entry, entries.Checkpoint):
            self.due = self.coordinator.state()
        return answer

    def complete(self) -> None:
        """All servers have written their parts of the newest checkpoint."""
        if self.due is not None:
            self.saved.append((self.due.entries, self.due))
            self.due = None

    def crash(self) -> None:
        self.generation, self.due = self.generation + 1, None
        for worker in self.workers:
            worker.connected = False
            worker.up.clear()
            worker.down.clear()
        self.coordinator = self.new()
        kept, state = self.saved[-1] if self.saved else (0, None)
        self.void += self.log[kept:]
        rolled_back, self.log = len(self.log) - kept, self.log[:kept]
        if state is None:
            self.take(self.coordinator.opening())
        else:
            found = CoordinatorState.from_json(state.to_json())
            self.coordinator.restore(reopened(found, build(self.policy, self.knobs, WORKERS)))
            self.take(self.coordinator.resume(rolled_back, self.now))

    # Workers

    def open(self, worker: Worker) -> None:
        member, outputs = self.coordinator.join(worker.name, "session", int(worker.name[1:]), self.now)
        self.take(outputs)
        before, worker.member = worker.member, (self.generation, member.incarnation)
        worker.next_batch = self.coordinator.roster.tally(worker.name).next_batch
        worker.connected = True
        if before not in (None, worker.member):
            undone = worker.engine.undone(worker.next_batch) > 0
            again = undone or before is None or before[0] != self.generation
            worker.engine.renew("another membership", worker.next_batch, again=again)
        worker.up.extend(worker.engine.owed())
        self.take(self.coordinator.connect(worker.name, member.incarnation, "session", self.now))

    def cut(self, worker: Worker) -> None:
        if worker.connected:
            worker.connected = False
            worker.up.clear()
            worker.down.clear()
            assert worker.member is not None
            self.take(self.coordinator.disconnect(worker.name, worker.member[1], self.now))

    def deliver(self, worker: Worker, request: Request, diverted: str = "") -> list[Event]:
        assert worker.member is not None
        return self.take(
            deliver(self.coordinator, worker.name, worker.member[1], request, self.now), diverted
        )

    def send(self, worker: Worker, requests: list[Request]) -> None:
        if worker.connected:
            worker.up.extend(requests)

    def move(self, worker: Worker) -> bool:
        """One step of its loop. False: it waits."""
        engine = worker.engine
        if worker.broken is not None:
            commit, worker.broken = worker.broken, None
            try:
                self.send(worker, engine.commit(commit))
            except Voided:
                worker.batch -= 1
                self.send(worker, engine.abandon(commit.ticket, "void"))
            return True
        if engine.take_rollback():
            worker.batch = worker.next_batch
            return True
        if engine.stop is not None:
            return False
        match engine.work:
            case "idle":
                self.send(worker, engine.ready() if worker.batch < BATCHES else engine.done())
            case "granted" if worker.batch == BATCHES:
                # What was asked for before it went back is not needed any more.
                self.send(worker, engine.done())
            case "granted":
                grant = engine.take_grant()
                assert grant is not None
                worker.initialise = grant.initialise
            case "cancelled":
                assert engine.held is not None
                self.send(worker, engine.abandon(engine.held, "cancelled"))
            case "working":
                self.work(worker)
            case _:
                return False
        return True

    def work(self, worker: Worker) -> None:
        engine, ticket = worker.engine, worker.engine.held
        assert ticket is not None
        if worker.initialise:
            self.send(worker, engine.commit(Commit(ticket)))
            return
        more = worker.batch + 1 < BATCHES
        commit = Commit(ticket, worker.batch, 8, 0.5, ready=more)
        worker.batch += 1
        if not worker.connected or self.random.random() < 0.5:
            self.send(worker, engine.commit(commit))
            return
        commit, chance = engine.begin_commit(commit), self.random.random()
        if chance < 0.1:
            worker.broken = commit
            return
        answer = self.deliver(worker, commit, diverted=worker.name)
        if chance < 0.2:
            worker.down.extend(answer)
            worker.broken = commit
            return
        for event in answer:
            engine.receive(event)

    # A run

    def scene(self) -> None:
        worker, chance = self.random.choice(self.workers), self.random.random()
        if chance < 0.03:
            self.cut(worker)
        elif chance < 0.04:
            self.pass_time(TIMEOUT)
        elif chance < 0.1:
            self.complete()
        elif not worker.connected:
            self.open(worker)
        elif chance < 0.4 and worker.up:
            self.deliver(worker, worker.up.popleft())
        elif chance < 0.7 and worker.down:
            worker.engine.receive(worker.down.popleft())
            assert worker.engine.error is None
        else:
            self.move(worker)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.coordinator.tick(self.now))

    def run(self, crashes: set[int]) -> None:
        """Random scenes with these crashes in between, then none until the job is over."""
        for number in range(max(crashes, default=0) + 1):
            if number in crashes:
                self.crash()
            elif self.coordinator.stopped is None:
                self.scene()
        for _ in range(400):
            if self.coordinator.stopped is not None:
                return
            for worker in self.workers:
                if not worker.connected:
                    self.open(worker)
                while worker.up or worker.down or self.move(worker):
                    if worker.up:
                        self.deliver(worker, worker.up.popleft())
                    elif worker.down:
                        worker.engine.receive(worker.down.popleft())
            self.complete()
            self.pass_time(0.4)


@settings(max_examples=repetitions(60, soak=20_000), deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    crashes=st.sets(st.integers(0, 250), max_size=6),
    seed=st.integers(0, 2**16),
)
def test_every_batch_counts_once_whenever_the_servers_crash(
    policy: tuple[str, dict[str, object]], crashes: set[int], seed: int
) -> None:
    play(policy, crashes, seed)


def test_every_batch_counts_once_in_many_schedules() -> None:
    """Ten times as many in the same time, for nobody shrinks them: a failure names its seed, and the test above its
    crashes."""
    for seed in seeds(200, soak=100_000):
        drawn = Random(seed)
        policy, crashes = drawn.choice(POLICIES), set(drawn.sample(range(251), drawn.randrange(7)))
        try:
            play(policy, crashes, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {policy}, crashes at {sorted(crashes)}") from error


def play(policy: tuple[str, dict[str, object]], crashes: set[int], seed: int) -> None:
    servers = Servers(*policy, seed)
    servers.run(crashes)
    assert servers.coordinator.stopped is not None and servers.coordinator.stopped.success
    assert [record.index for record in servers.log] == list(range(len(servers.log)))
    committed = Counter(
        (record.entry.worker, record.entry.batch)
        for record in servers.log
        if isinstance(record.entry, entries.Commit)
    )
    assert committed == Counter(
        {(worker.name, batch): 1 for worker in servers.workers for batch in range(BATCHES)}
    )
    granted = Counter(
        record.entry.ticket
        for record in (*servers.log, *servers.void)
        if isinstance(record.entry, entries.Grant | entries.Initialise)
    )
    assert set(granted.values()) == {1}
