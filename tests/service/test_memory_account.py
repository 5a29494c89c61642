"""The account of a server's memory: true at every moment of any schedule, and the model's cost when all have left."""

import gc
import random
import tracemalloc
from dataclasses import dataclass, field

import pytest

from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.service.guard.memory import MIB, Memory
from psserver.shard import Admit, Apply, Dismiss, Fold, Hold, Install, Order, Release, Seal, Shard
from psserver.shard.arena import Version
from psserver.shard.staging import Slot
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.blocks import TOP_K
from tests.promises import promise
from tests.repetitions import seeds

ELEMENTS = 65_536
MEDIAN = TensorParts(aggregator="median", knobs={"fewest": 1})
TAYLOR = TensorParts("adaptive-taylor", knobs={"decay": 0.9, "epsilon": 1e-7})
SETTINGS = {
    "sums": ({"name": "sgd"}, TensorParts()),
    "sums in an order": ({"name": "adam"}, TensorParts()),
    "contributions side by side": ({"name": "sgd"}, MEDIAN),
    "bases": ({"name": "momentum"}, TAYLOR),
    "changes": ({"name": "sgd"}, TensorParts()),
    "layers' state": ({"name": "sgd"}, TensorParts()),
}


@dataclass
class Job:
    """A shard under a random schedule of what peers do. `turns`: payloads are summed in the order of their tickets."""

    chance: random.Random
    name: str
    limit: int = 1024 * MIB
    last: int = 1
    members: list[str] = field(default_factory=list)
    # Tickets by worker, and what has become of them.
    tickets: dict[int, str] = field(default_factory=dict)
    sealed: list[int] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)
    incoming: list[Slot] = field(default_factory=list)
    reads: list[Version] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings, tensors = SETTINGS[self.name]
        self.turns = self.name == "sums in an order"
        specs = [VariableSpec("w", (64, ELEMENTS // 64))]
        if self.name == "layers' state":
            specs.append(VariableSpec("averages", (ELEMENTS // 64,), kind="state"))
        plan = make_plan(specs, 1)
        deltas = TOP_K if self.name == "changes" else None
        optimizer = build({**settings, "learning_rate": 0.01})
        self.memory = Memory(self.limit, 3)
        self.shard = Shard(plan, 0, optimizer, tensors=tensors, staging=4, deltas=deltas)
        self.memory.serve(self.shard)
        self.nbytes = plan.shards[0].nbytes
        self.order(Hold(1, 0, initialise=True, worker="first"))
        self.finish(self.begin(1))
        self.order(Install(1))

    def order(self, order: Order) -> None:
        if self.shard.blocked(order):
            self.shard.take_back()
        self.shard.execute(order)

    def begin(self, ticket: int) -> Slot:
        slot = self.shard.begin(ticket)
        slot.values[...] = 1e-3
        return slot

    def finish(self, slot: Slot) -> None:
        self.shard.staging.finish(slot)

    # What peers do

    def join(self) -> None:
        worker = f"w{self.chance.randrange(6)}"
        if worker not in self.members:
            self.members.append(worker)
            self.order(Admit(worker, 0))

    def leave(self) -> None:
        if self.members:
            worker = self.members.pop(self.chance.randrange(len(self.members)))
            for ticket in [t for t, w in self.tickets.items() if w == worker]:
                self.close(ticket)
            self.order(Dismiss(worker))

    def grant(self) -> None:
        if self.members:
            worker = self.chance.choice(self.members)
            if sum(w == worker for w in self.tickets.values()) < 2:
                self.last += 1
                turn = self.last if self.turns else None
                self.order(Hold(self.last, self.shard.version, turn, worker=worker))
                self.tickets[self.last] = worker

    def push(self) -> None:
        waiting = [t for t in self.tickets if not self.held(t) and self.may_come(t)]
        if waiting:
            slot = self.begin(self.chance.choice(waiting))
            if self.chance.random() < 0.3:
                self.incoming.append(slot)
            else:
                self.finish(slot)

    def held(self, ticket: int) -> bool:
        return self.shard.staging.holds(ticket) or self.shard.staging.incoming(ticket) is not None

    def may_come(self, ticket: int) -> bool:
        return self.shard.staging.admits(ticket) and self.memory.admits_payload(ticket)

    def end_push(self) -> None:
        if self.incoming:
            slot = self.incoming.pop(self.chance.randrange(len(self.incoming)))
            (self.finish if self.chance.random() < 0.5 else self.shard.staging.give_up)(slot)

    def commit(self) -> None:
        for ticket in [t for t in self.tickets if self.shard.staging.holds(t) and t not in self.sealed]:
            if self.turns and ticket != min(self.tickets):
                continue
            self.order(Seal(ticket))
            self.sealed.append(ticket)
            return

    def fold(self) -> None:
        if self.sealed:
            ticket = self.sealed.pop(0)
            strength = 0.5 if self.shard.tensors.compensator else 0.0
            self.order(Fold(ticket, 1.0, strength))
            del self.tickets[ticket]
            self.folded.append(ticket)

    def apply(self) -> None:
        if self.folded:
            self.order(Apply(self.shard.version + 1, 1 / len(self.folded), 1.0))
            self.folded.clear()

    def read(self) -> None:
        version = self.shard.arena.start_read(self.shard.version)
        if version is not None and len(self.reads) < 6:
            self.reads.append(version)
        elif version is not None:
            self.shard.arena.end_read(version)

    def end_read(self) -> None:
        if self.reads:
            self.shard.arena.end_read(self.reads.pop(self.chance.randrange(len(self.reads))))

    def take_back(self) -> None:
        if not self.shard.tensors.keep_bases:
            self.shard.take_back()

    def close(self, ticket: int) -> None:
        for slot in [s for s in self.incoming if s.ticket == ticket]:
            self.incoming.remove(slot)
            self.shard.staging.give_up(slot)
        if ticket in self.sealed:
            self.sealed.remove(ticket)
        self.order(Release(ticket))
        del self.tickets[ticket]

    def abandon(self) -> None:
        if self.tickets:
            self.close(self.chance.choice(list(self.tickets)))

    def everybody_goes(self) -> None:
        while self.members:
            self.leave()
        while self.reads:
            self.end_read()
        self.apply()

    def step(self) -> None:
        often = (self.join, self.grant, self.push, self.commit, self.fold, self.read)
        seldom = (self.end_push, self.apply, self.end_read, self.take_back, self.abandon, self.leave)
        self.chance.choice((*often, *often, *often, *seldom))()


@promise("The memory that peers make a server use is bounded.")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", list(seeds(3, soak=60)))
def test_any_schedule_returns_to_what_the_model_costs(name: str, seed: int) -> None:
    job = Job(random.Random(f"{name}/{seed}"), name)
    cost = job.memory.total
    largest = cost
    for _ in range(400):
        job.step()
        largest = max(largest, job.memory.total)
    assert largest > cost, "the schedule took nothing"
    job.everybody_goes()
    # Payload buffers that wait to be used again are the model's, few, and given back when room is wanted.
    assert job.memory.total <= cost + 4 * job.nbytes
    job.shard.staging.trim()
    assert job.memory.total == cost


@pytest.mark.parametrize("name", SETTINGS)
def test_the_account_is_what_the_allocator_says(name: str) -> None:
    """No array that a peer causes is missing in it: what Python has allocated is never more."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        job, seen = Job(random.Random(name), name), 0
        for _ in range(300):
            job.step()
            held = tracemalloc.get_traced_memory()[0] - before
            # Tickets and names are a few kB.
            assert held <= job.memory.total + job.nbytes // 2
            seen = max(seen, held)
        assert seen > 3 * job.nbytes
        # Nothing is counted that is not there, but what is promised to the model.
        promised = job.memory.parts()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        assert held >= job.memory.total - promised["model"] - promised["payloads"]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", list(seeds(5, soak=100)))
@pytest.mark.parametrize("name", ["sums", "sums in an order"])
@pytest.mark.parametrize("more", [0, 1])
def test_a_small_limit_is_kept_and_nobody_waits_for_ever(name: str, seed: int, more: int) -> None:
    """With room for no payload beside the model's, or for one, every ticket that is committed comes to its end."""
    roomy = Job(random.Random(0), name)
    limit = roomy.memory.total + more * roomy.nbytes
    job = Job(random.Random(f"{name}/{seed}/small"), name, limit)
    for _ in range(300):
        # Reads are bounded by `psserver.service.store.reading`.
        job.step()
        while job.reads:
            job.end_read()
        assert job.memory.total <= limit
    # All that are open push and commit, the last that was granted first.
    while job.incoming:
        job.end_push()
    waiting = set(job.tickets)
    while waiting:
        may = [t for t in sorted(waiting, reverse=True) if job.held(t) or job.may_come(t)]
        assert may, "no payload is let in, and none that is here can go"
        for ticket in may:
            if not job.held(ticket) and job.may_come(ticket):
                job.finish(job.begin(ticket))
        before = len(waiting)
        for _ in range(before):
            job.commit()
            job.fold()
        waiting = set(job.tickets)
        assert len(waiting) < before
        assert job.memory.total <= limit
