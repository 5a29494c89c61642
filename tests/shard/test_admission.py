"""Memory under a barrier: few payloads are held whatever the order of arrival, and nobody waits for ever.

The real coordinator, policy and shards, and a scheduler that picks what
happens next: which stream begins or ends, which server executes one more
entry. A state in which nothing can happen before the rounds are done is a deadlock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from psserver.coordinator import Coordinator, JobTerms, Output, Record, Send, inputs
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy
from psserver.shard import Order, Shard
from psserver.shard.staging import Slot
from pswire import protocol
from pswire.model.plan import VariableSpec, make_plan

WORKERS, ROUNDS = 16, 3


@dataclass
class Worker:
    name: str
    rank: int
    grant: protocol.Grant | None = None
    streams: dict[int, Slot] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)


class Barrier:
    """`sync` over several servers, one event at a time."""

    def __init__(self, workers: int, servers: int, limit: int, random: Random) -> None:
        self.random = random
        plan = make_plan([VariableSpec("w", (servers, 2))], servers)
        optimizer = build_optimizer({"name": "sgd"})
        self.shards = [Shard(plan, server, optimizer, staging=limit) for server in range(servers)]
        self.queues: list[deque[tuple[int, Order]]] = [deque() for _ in range(servers)]
        self.executed = [0] * servers
        self.folded: set[int] = set()
        terms = JobTerms("job", servers=servers, workers=workers)
        self.coordinator = Coordinator(terms, build_policy("sync", {}, workers))
        self.workers = [Worker(f"w{rank}", rank) for rank in range(workers)]
        self.turns: dict[int, int] = {}
        self.route(self.coordinator.take(inputs.Opened(), 0.0))
        for worker in self.workers:
            self.route(self.coordinator.take(inputs.JoinAsked(worker.name, worker.name, worker.rank), 0.0))
            self.route(self.coordinator.take(inputs.Connected(worker.name, 0, worker.name), 0.0))
        for worker in self.workers:
            self.route(self.coordinator.take(inputs.Requested(worker.name, 0, protocol.Ready()), 0.0))

    def route(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Record(index, _, entry):
                    order = entry.order(self.folded)
                    for queue in self.queues:
                        queue.append((index, order))
                case Send(name, _, protocol.Grant() as grant):
                    worker = self.workers[int(name[1:])]
                    worker.grant, worker.acknowledged = grant, set()

    # What can happen

    def possible(self) -> list[tuple[int, Callable[[], None]]]:
        """(urgency for the worst order, event)"""
        events: list[tuple[int, Callable[[], None]]] = []
        for server, queue in enumerate(self.queues):
            if queue:
                events.append((-1, lambda s=server: self.execute(s)))  # type: ignore[misc]
        for worker in self.workers:
            events += [(worker.rank, event) for event in self.of_worker(worker)]
        return events

    def of_worker(self, worker: Worker) -> list[Callable[[], None]]:
        events: list[Callable[[], None]] = []
        if worker.grant is None:
            return events
        grant = worker.grant
        for server, shard in enumerate(self.shards):
            if server in worker.streams:
                events.append(lambda s=server: self.end(worker, s))  # type: ignore[misc]
            elif server not in worker.acknowledged and self.executed[server] > grant.index:
                if shard.refusal(grant.ticket) is None and shard.staging.admits(grant.ticket):
                    events.append(lambda s=server: self.begin(worker, s))  # type: ignore[misc]
        if len(worker.acknowledged) == len(self.shards):
            events.append(lambda: self.commit(worker))
        return events

    def execute(self, server: int) -> None:
        index, order = self.queues[server].popleft()
        self.shards[server].execute(order)
        self.executed[server] = index + 1

    def begin(self, worker: Worker, server: int) -> None:
        assert worker.grant is not None
        shard = self.shards[server]
        shard.holds.has_read(worker.grant.ticket)
        worker.streams[server] = shard.begin(worker.grant.ticket)
        worker.streams[server].values[...] = 1.0

    def end(self, worker: Worker, server: int) -> None:
        assert self.shards[server].staging.finish(worker.streams.pop(server))
        worker.acknowledged.add(server)

    def commit(self, worker: Worker) -> None:
        assert worker.grant is not None
        ticket, worker.grant = worker.grant.ticket, None
        self.route(
            self.coordinator.take(inputs.Requested(worker.name, 0, protocol.Commit(ticket, ready=True)), 0.0)
        )

    def die(self, worker: Worker) -> None:
        for server, slot in worker.streams.items():
            self.shards[server].staging.give_up(slot)
        worker.streams.clear()
        worker.grant = None
        self.route(self.coordinator.take(inputs.Requested(worker.name, 0, protocol.Leave("died")), 0.0))

    # Schedules

    def run(self, pick: Callable[[list[tuple[int, Callable[[], None]]]], Callable[[], None]]) -> None:
        while self.coordinator.state.version < ROUNDS:
            events = self.possible()
            assert events, f"deadlock: {[shard.staging.held for shard in self.shards]} payloads held"
            pick(events)()
        for server, queue in enumerate(self.queues):
            while queue:
                self.execute(server)


def anything(random: Random) -> Callable[[list[tuple[int, Callable[[], None]]]], Callable[[], None]]:
    return lambda events: random.choice(events)[1]


def worst(events: list[tuple[int, Callable[[], None]]]) -> Callable[[], None]:
    """The last in the order of summation first; servers execute entries only when nothing else is left."""
    return max(events, key=lambda event: event[0])[1]


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("servers", [1, 3])
def test_the_worst_order_of_arrival(servers: int, limit: int) -> None:
    barrier = Barrier(WORKERS, servers, limit, Random(0))
    barrier.run(worst)
    for shard in barrier.shards:
        assert shard.version == ROUNDS
        assert shard.staging.peak == limit + 1


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_arrival(seed: int) -> None:
    random = Random(seed)
    limit, servers = random.randint(1, 5), random.randint(1, 3)
    barrier = Barrier(random.randint(2, WORKERS), servers, limit, random)
    barrier.run(anything(random))
    assert all(shard.staging.peak <= limit + 1 for shard in barrier.shards)


@pytest.mark.parametrize("seed", range(60))
def test_workers_that_die_hold_nobody_up(seed: int) -> None:
    """The worker whose payload comes next may die at any moment: in a stream, between two, before its commit."""
    random = Random(seed)
    limit = random.randint(1, 3)
    barrier = Barrier(WORKERS, 3, limit, random)
    mortal = random.sample(barrier.workers, random.randint(1, WORKERS - 1))

    def pick(events: list[tuple[int, Callable[[], None]]]) -> Callable[[], None]:
        if mortal and barrier.coordinator.state.started and random.random() < 0.05:
            victim = mortal.pop()
            return lambda: barrier.die(victim)
        return worst(events) if seed % 2 else random.choice(events)[1]

    barrier.run(pick)
    assert all(shard.staging.peak <= limit + 1 for shard in barrier.shards)
