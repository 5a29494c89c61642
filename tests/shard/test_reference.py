"""Shards against their reference: random orders, 1 to 4 servers, every published version, every bit."""

from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Order, Release, Seal, Shard
from psserver.shard.arena import Version
from psserver.shard.staging import Slot
from tests.repetitions import repetitions
from tests.shard.reference import Reference, install, numbers, same_bits, shards_of, stage

T = TypeVar("T")

# Weights as policies give them; 0 because a policy may.
FACTORS = (1.0, 0.5, 1 / 3, 0.2, 0.0)
STRENGTHS = (0.0, 0.04, 2.0)
LR_SCALES = (1.0, 0.25)

# How often a schedule tries each of the verbs below: often enough that tickets get through.
TRIES = {
    "grant": 4,
    "push": 4,
    "resend": 1,
    "commit": 4,
    "fold": 2,
    "apply": 3,
    "release": 1,
    "begin_stream": 2,
    "end_stream": 2,
    "start_read": 3,
    "end_read": 2,
    "take_back": 1,
}
verbs = st.sampled_from([verb for verb, tries in TRIES.items() for _ in range(tries)])
schedules = st.lists(st.tuples(verbs, st.integers(0, 59)), min_size=40, max_size=120)


class Run:
    """Shards and reference under one schedule. Each verb does what its number says, or nothing if there is nothing."""

    def __init__(self, servers: int, limit: int, keep_bases: bool) -> None:
        self.reference = Reference()
        self.limit, self.keep_bases = limit, keep_bases
        self.plan, self.shards = shards_of(
            servers, versions=limit, tensors=TensorParts("taylor" if keep_bases else None)
        )
        # Tickets by what has become of them so far.
        self.granted: list[int] = []
        self.pushed: list[int] = []
        self.sealed: list[int] = []
        self.folded: list[int] = []
        self.last = 1
        self.reads: list[tuple[Shard, int, Version, bytes]] = []
        self.streams: list[tuple[Shard, Slot]] = []
        # The reference's versions, as the servers should hold them.
        self.flats: list[list[np.ndarray]] = []
        # Of each ticket's payload.
        self.seeds: dict[int, int] = {}
        self.reference.payloads[1] = numbers(1)
        install(self.plan, self.shards, numbers(1))
        self.reference.install(1)

    def order(self, order: Order) -> None:
        for shard in self.shards:
            if shard.blocked(order):
                assert not self.keep_bases
                shard.take_back()
            shard.execute(order)

    def one_of(self, items: list[T], number: int) -> T:
        return items[number % len(items)]

    @property
    def open(self) -> list[int]:
        return self.granted + self.pushed

    # Verbs

    def grant(self, number: int) -> None:
        self.last += 1
        version = len(self.reference.versions) - 1
        self.order(Hold(self.last, version))
        self.reference.bases[self.last] = version
        self.granted.append(self.last)

    def push(self, number: int) -> None:
        if self.granted and not self._under_way(self.one_of(self.granted, number)):
            self.pushed.append(self.granted.pop(number % len(self.granted)))
            self._stage(self.pushed[-1], self.last + number)

    def resend(self, number: int) -> None:
        if self.pushed:
            ticket = self.one_of(self.pushed, number)
            if number % 2:
                self._stage(ticket, self.seeds[ticket])
            else:
                self._replace(ticket, 1000 + number)

    def _stage(self, ticket: int, seed: int) -> None:
        if self._under_way(ticket):
            return
        stage(self.plan, self.shards, ticket, numbers(seed))
        self.seeds[ticket] = seed
        self.reference.payloads[ticket] = numbers(seed)

    def _replace(self, ticket: int, seed: int) -> None:
        """Another payload than the one that was accepted is not taken."""
        for shard, flat in zip(self.shards, self.plan.scatter(numbers(seed)), strict=True):
            if shard.staging.incoming(ticket) is None:
                slot = shard.begin(ticket)
                slot.values[...] = flat
                assert not shard.staging.finish(slot)
                assert shard.refusal(ticket) is None

    def _under_way(self, ticket: int) -> bool:
        return any(shard.staging.incoming(ticket) is not None for shard in self.shards)

    def begin_stream(self, number: int) -> None:
        """A stream that does not complete while its ticket is open."""
        if self.open:
            shard, ticket = self.one_of(self.shards, number), self.one_of(self.open, number)
            if shard.staging.incoming(ticket) is None:
                slot = shard.begin(ticket)
                slot.values[...] = np.nan
                self.streams.append((shard, slot))

    def end_stream(self, number: int) -> None:
        if self.streams:
            shard, slot = self.streams.pop(number % len(self.streams))
            if slot.ticket in self.open:
                shard.staging.give_up(slot)
            else:
                assert shard.refusal(slot.ticket) is not None
                assert not shard.staging.finish(slot)

    def commit(self, number: int) -> None:
        if self.pushed:
            self.sealed.append(self.pushed.pop(number % len(self.pushed)))
            self.order(Seal(self.sealed[-1]))

    def _contribution(self, number: int) -> Fold:
        ticket = self.sealed.pop(number % len(self.sealed))
        strength = self.one_of([*STRENGTHS], number) if self.keep_bases else 0.0
        return Fold(ticket, self.one_of([*FACTORS], number), strength)

    def fold(self, number: int) -> None:
        if self.sealed:
            fold = self._contribution(number)
            self.order(fold)
            self.reference.fold(fold)
            self.folded.append(fold.ticket)

    def apply(self, number: int) -> None:
        late = [self._contribution(number // 2) for _ in range(number % 4) if self.sealed]
        if late or self.folded:
            scale = 1 / (len(late) + len(self.folded))
            apply = Apply(len(self.reference.versions), scale, self.one_of([*LR_SCALES], number), tuple(late))
            self.order(apply)
            self.reference.apply(apply)
            self.folded.clear()

    def release(self, number: int) -> None:
        tickets = self.one_of([self.granted, self.pushed, self.sealed], number)
        if tickets:
            ticket = tickets.pop(number % len(tickets))
            self.order(Release(ticket))
            self.reference.release(ticket)

    def start_read(self, number: int) -> None:
        if self.open:
            ticket, shard = self.one_of(self.open, number), self.one_of(self.shards, number)
            version = shard.arena.start_read(self.reference.bases[ticket])
            # Nothing takes a base from its open ticket; else a hold ends with the first read or the limit.
            assert version is not None or not self.keep_bases
            if version is not None:
                self.reads.append((shard, ticket, version, version.values.tobytes()))

    def end_read(self, number: int) -> None:
        if self.reads:
            shard, ticket, version, _ = self.reads.pop(number % len(self.reads))
            if number % 3:
                shard.holds.has_read(ticket)
            shard.arena.end_read(version)

    def take_back(self, number: int) -> None:
        if not self.keep_bases:
            for shard in self.shards:
                shard.take_back()

    # Promises

    def check(self) -> None:
        newest = len(self.reference.versions) - 1
        self.flats += [self.plan.scatter(arrays) for arrays in self.reference.versions[len(self.flats) :]]
        for number, flats in enumerate(self.flats):
            for shard, flat in zip(self.shards, flats, strict=True):
                values = shard.arena.values(number)
                assert values is None or same_bits(values, flat), f"version {number} is not the reference's"
        for shard in self.shards:
            assert shard.version == newest
            assert shard.arena.values(newest) is not None
            assert self.keep_bases or shard.arena.buffers <= self.limit
            assert shard.arena.can_take() or shard.arena.buffers == self.limit
        assert all(v.values.tobytes() == values for _, _, v, values in self.reads), "a reader saw a change"


@settings(max_examples=repetitions(120, soak=3000))
@given(st.integers(1, 4), st.integers(2, 3), st.booleans(), schedules)
def test_shards_agree_with_their_twin(
    servers: int, limit: int, keep_bases: bool, schedule: list[tuple[str, int]]
) -> None:
    run = Run(servers, limit, keep_bases)
    for verb, number in schedule:
        getattr(run, verb)(number)
        run.check()
