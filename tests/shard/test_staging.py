"""Staging: idempotent per ticket, final once sealed, no trace of what did not complete."""

import numpy as np
import pytest

from psserver.decisions.orders import Fold, Install
from psserver.shard import Apply, Hold, Release, Seal, Shard, ShardError
from psserver.shard.staging import Staging
from tests.probes import staged
from tests.sentences import Recorder
from tests.shard.reference import SGD, install, numbers, same_bits, shards_of, stage


@pytest.fixture
def shard() -> Shard:
    """One server, version 0 installed, ticket 7 granted."""
    plan, (shard,) = shards_of(1, SGD)
    install(plan, [shard], numbers(0))
    shard.execute(Hold(7, 0))
    return shard


def payload(shard: Shard, seed: int) -> np.ndarray:
    (flat,) = shard.plan.scatter(numbers(seed))
    return flat


def push(shard: Shard, ticket: int, seed: int) -> bool:
    slot = shard.begin(ticket)
    slot.values[...] = payload(shard, seed)
    return shard.staging.finish(slot)


def contribution(shard: Shard, ticket: int) -> np.ndarray:
    """What an update makes of the ticket's payload."""
    shard.execute(Seal(ticket))
    shard.execute(Apply(shard.version + 1, 1.0, 1.0, (Fold(ticket, 1.0),)))
    values = shard.arena.values(shard.version)
    assert values is not None
    return values


def test_the_first_complete_payload_counts(shard: Shard) -> None:
    """Its receipt is given: what is received is what is committed. The same again is no other."""
    for seed, taken in ((1, True), (2, False), (1, True), (3, False)):
        assert push(shard, 7, seed) == taken
        assert shard.staging.held == 1
    again = Shard(shard.plan, 0, shard.optimizer)
    install(shard.plan, [again], numbers(0))
    again.execute(Hold(7, 0))
    push(again, 7, 1)
    assert same_bits(contribution(shard, 7), contribution(again, 7))


def test_the_same_payload_is_the_same_to_the_bit(shard: Shard) -> None:
    """-0 equals 0, and is another payload."""
    for sign, taken in ((0.0, True), (-0.0, False)):
        slot = shard.begin(7)
        slot.values[...] = sign
        assert shard.staging.finish(slot) == taken


def test_a_payload_is_final_once_sealed(shard: Shard, sentences: Recorder) -> None:
    assert push(shard, 7, 1)
    late = shard.begin(7)
    late.values[...] = np.nan
    shard.execute(Seal(7))
    sentences.check(shard.refusal(7))
    assert not shard.staging.finish(late)
    assert np.isfinite(contribution(shard, 7)).all()


def test_one_push_of_a_ticket_is_under_way(shard: Shard, sentences: Recorder) -> None:
    """A retry cuts the stream that it replaces, and begins when that has ended."""
    cuts = []
    old = shard.begin(7, cut=lambda: cuts.append(7))
    assert shard.staging.incoming(7) is old
    with pytest.raises(AssertionError) as refused:
        shard.begin(7)
    sentences.check(refused)
    old.cut()
    assert cuts == [7]
    old.values[...] = np.nan
    shard.staging.give_up(old)
    assert shard.staging.incoming(7) is None
    assert push(shard, 7, 1)
    assert shard.staging.held == shard.staging.peak == 1
    assert np.isfinite(contribution(shard, 7)).all()


def test_what_did_not_complete_leaves_no_trace(shard: Shard, sentences: Recorder) -> None:
    slot = shard.begin(7)
    slot.values[...] = np.nan
    shard.staging.give_up(slot)
    assert shard.staging.held == 0
    assert not shard.staging.holds(7)
    before = shard.arena.values(0).tobytes()  # type: ignore[union-attr]
    with pytest.raises(ShardError) as refused:
        shard.execute(Fold(7, 1.0))
    sentences.check(refused)
    with pytest.raises(ShardError) as refused:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0),)))
    sentences.check(refused)
    assert shard.version == 0
    assert shard.arena.values(0).tobytes() == before  # type: ignore[union-attr]
    # Recycled memory still holds the old numbers; a complete payload overwrites them all.
    assert push(shard, 7, 1)
    assert np.isfinite(contribution(shard, 7)).all()


def test_a_released_ticket_is_unknown(shard: Shard) -> None:
    assert push(shard, 7, 1)
    stream = shard.begin(7)
    shard.execute(Release(7))
    assert not shard.staging.finish(stream)
    assert shard.staging.held == 0
    refusal = "is not open here: it was never granted, or is settled or cancelled"
    assert shard.refusal(7) == f"ticket 7 {refusal}"
    assert shard.refusal(8) == f"ticket 8 {refusal}"
    # Orders about tickets that were never here are no news: a release may follow another.
    shard.execute(Release(7))
    shard.execute(Seal(7))


def test_an_order_out_of_step_changes_nothing(shard: Shard) -> None:
    assert push(shard, 7, 1)
    for order, words in (
        (Apply(5, 1.0, 1.0, (Fold(7, 1.0),)), "apply makes version 5, but 0 is newest"),
        (Apply(1, 1.0, 1.0), "apply of version 1 has no contributions"),
        (Hold(9, 4), "ticket 9 was granted version 4, but 0 is newest"),
        (Install(9), "the payload of ticket 9 is not here"),
    ):
        with pytest.raises(ShardError, match=words):
            shard.execute(order)
    assert shard.staging.holds(7)
    assert shard.version == 0


def test_payload_buffers_are_used_again() -> None:
    plan, (shard,) = shards_of(1, SGD)
    install(plan, [shard], numbers(0))
    buffers = set()
    for ticket in range(2, 40):
        shard.execute(Hold(ticket, shard.version))
        stage(plan, [shard], ticket, numbers(ticket))
        buffers.add(staged(shard, ticket).ctypes.data)
        contribution(shard, ticket)
    assert len(buffers) <= 3
    assert shard.staging.peak == 1


def test_a_staging_without_room_makes_no_sense(sentences: Recorder) -> None:
    with pytest.raises(ValueError) as refused:
        Staging(10, 0)
    sentences.check(refused)
