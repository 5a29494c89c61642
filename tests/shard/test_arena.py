"""Published versions: immutable, held by tickets, taken back after the limit, few buffers."""

import hashlib

import numpy as np
import pytest

from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Seal, Shard
from psserver.shard.arena import Arena
from tests.sentences import Recorder
from tests.shard.reference import MOMENTUM, install, numbers, shards_of, stage


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


def trained(versions: int, **options: object) -> Shard:
    plan, (shard,) = shards_of(1, MOMENTUM, versions=versions, **options)
    install(plan, [shard], numbers(0))
    return shard


def update(shard: Shard, seed: int) -> None:
    """One more version."""
    ticket = 10_000 + seed
    shard.execute(Hold(ticket, shard.version))
    stage(shard.plan, [shard], ticket, numbers(seed))
    shard.execute(Seal(ticket))
    shard.execute(Apply(shard.version + 1, 1.0, 1.0, (Fold(ticket, 1.0),)))


def test_a_version_that_a_ticket_holds_never_changes() -> None:
    shard = trained(3)
    shard.execute(Hold(7, 0))
    version = shard.arena.start_read(0)
    assert version is not None
    before = digest(version.values)
    for seed in range(10):
        update(shard, seed)
        assert digest(version.values) == before
        assert shard.arena.values(0) is version.values
        assert shard.arena.buffers <= 3
    shard.holds.has_read(7)
    assert shard.arena.values(0) is None and shard.arena.being_read == (version,)
    update(shard, 10)
    assert digest(version.values) == before, "a read goes on without a ticket"
    shard.arena.end_read(version)
    assert not shard.arena.being_read and shard.arena.buffers <= 3


def test_a_version_that_two_tickets_hold_stays_for_the_second() -> None:
    shard = trained(3)
    shard.execute(Hold(7, 0))
    shard.execute(Hold(8, 0))
    held = shard.arena.values(0)
    assert held is not None
    before = digest(held)
    update(shard, 1)
    shard.holds.has_read(7)
    for seed in range(2, 5):
        update(shard, seed)
        assert shard.arena.values(0) is held and digest(held) == before
    shard.holds.has_read(8)
    assert shard.arena.values(0) is None


@pytest.mark.parametrize("limit", [2, 3])
def test_buffers_are_recycled(limit: int) -> None:
    shard = trained(limit)
    addresses = set()
    for seed in range(20):
        update(shard, seed)
        addresses.add(shard.arena.values(shard.version).ctypes.data)  # type: ignore[union-attr]
    assert len(addresses) == 2, "without readers two buffers take turns"
    assert shard.arena.buffers == 2


@pytest.mark.parametrize("limit", [2, 3])
def test_an_update_waits_for_readers_or_takes_back_their_versions(limit: int) -> None:
    """One version is written, one is newest; the others may be kept for readers, and no more."""
    shard = trained(limit)
    for reader in range(limit - 1):
        shard.execute(Hold(reader, shard.version))
        assert not shard.blocked(Apply(shard.version + 1, 1.0, 1.0))
        update(shard, reader)
    blocked = Apply(shard.version + 1, 1.0, 1.0)
    assert shard.blocked(blocked)
    assert shard.holds.unread == list(range(limit - 1))
    shard.take_back()
    assert not shard.blocked(blocked)
    assert shard.holds.unread == []
    assert shard.arena.values(0) is None, "it was taken back"
    assert shard.arena.start_read(0) is None
    assert shard.arena.start_read(shard.version) is not None, "the newest version is nobody's to take"


def test_a_reader_whose_version_is_taken_back_keeps_its_bits() -> None:
    """Its buffer is left to it and replaced: it reads on, and is told afterwards that the version is gone."""
    shard = trained(2)
    shard.execute(Hold(7, 0))
    version = shard.arena.start_read(0)
    assert version is not None
    before = digest(version.values)
    update(shard, 1)
    shard.take_back()
    for seed in range(2, 8):
        update(shard, seed)
        assert not np.shares_memory(version.values, shard.arena.values(shard.version))  # type: ignore[arg-type]
    assert digest(version.values) == before
    assert shard.arena.values(0) is not version.values
    shard.arena.end_read(version)
    assert shard.arena.buffers <= 2


@pytest.mark.parametrize("spoilt", [True, False])
def test_a_buffer_is_written_again_unless_somebody_may_read_it_in_shared_memory(spoilt: bool) -> None:
    """Where nobody does, versions that are taken back cost no allocation: a copy of the shard takes them all back."""
    made: list[np.ndarray] = []

    def allocate(elements: int) -> np.ndarray:
        made.append(np.zeros(elements, np.float32))
        return made[-1]

    shard = trained(3, allocate=allocate)
    given = []
    for seed in range(20):
        shard.execute(Hold(seed, shard.version))
        given.append(shard.arena.values(shard.version))
        if shard.blocked(Apply(shard.version + 1, 1.0, 1.0)):
            for ticket in shard.holds.unread if spoilt else ():
                shard.arena.spoil(shard.holds.of(ticket))  # type: ignore[arg-type]
            shard.take_back()
        update(shard, 100 + seed)
    assert (len(made) > 10) == spoilt and (spoilt or len(made) <= 3)


def test_a_read_without_a_ticket_holds_up_no_update() -> None:
    """Nor does it cost the arena a buffer for long: the buffer comes back with the read's end."""
    shard = trained(2)
    found = shard.arena.start_read(0)
    assert found is not None
    before = digest(found.values)
    for seed in range(4):
        assert not shard.blocked(Apply(shard.version + 1, 1.0, 1.0))
        update(shard, seed)
    assert digest(found.values) == before and len(shard.arena.being_read) == 1
    shard.arena.end_read(found)
    assert shard.arena.being_read == () and shard.arena.buffers == 2


def test_what_updates_are_compared_with_is_held_after_it_was_read() -> None:
    """Compensation needs the version that a ticket started from, long after it was read."""
    shard = trained(2, tensors=TensorParts("taylor"))
    shard.execute(Hold(7, 0))
    shard.holds.has_read(7)
    base = shard.arena.values(0)
    assert base is not None and shard.holds.of(7) == 0
    before = digest(base)
    for seed in range(6):
        update(shard, seed)
        assert not shard.blocked(Apply(shard.version + 1, 1.0, 1.0))
    assert shard.arena.values(0) is base and digest(base) == before
    assert shard.arena.buffers <= 3, "base, newest, and the one to be written"


def test_an_arena_needs_one_buffer_to_read_and_one_to_write(sentences: Recorder) -> None:
    with pytest.raises(ValueError) as refused:
        Arena(10, 1)
    sentences.check(refused)
