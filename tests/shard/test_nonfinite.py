"""A version that is not finite is never published, on any number of servers and by any optimizer."""

from itertools import pairwise

import numpy as np
import pytest

from psserver.fast import Backend
from psserver.optimizers import build, names
from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Install, NonfiniteError, Pin, Seal, Shard
from pswire.model.plan import VariableSpec, make_plan
from tests.promises import promise
from tests.sentences import Recorder

PLAN = make_plan([VariableSpec("w", (5,)), VariableSpec("mean", (3,), kind="state")], 1)
HUGE = 3e38


def granted(optimizer: dict[str, object], **options: object) -> Shard:
    """Version 0 is ones everywhere, and tickets 7 (of w7) and 8 (of w8) are open."""
    shard = Shard(PLAN, 0, build(optimizer), **options)  # type: ignore[arg-type]
    shard.execute(Pin(1, 0, initialise=True, worker="w7"))
    push(shard, 1, *[1.0] * 8)
    shard.execute(Install(1))
    for ticket in (7, 8):
        shard.execute(Pin(ticket, 0, worker=f"w{ticket}"))
    return shard


def push(shard: Shard, ticket: int, *values: float) -> None:
    slot = shard.begin(ticket)
    slot.values[...] = values
    assert shard.checks.nonfinite(slot.values) is None
    assert shard.staging.finish(slot)
    shard.execute(Seal(ticket))


def test_two_finite_gradients_whose_sum_is_not(sentences: Recorder) -> None:
    shard = granted({"name": "sgd", "learning_rate": 1.0})
    push(shard, 7, 0, 0, HUGE, 0, 0, 0, 0, 0)
    push(shard, 8, 0, 0, HUGE, 0, 0, 0, 0, 0)
    shard.execute(Fold(7, 1.0))
    with pytest.raises(NonfiniteError) as refused:
        shard.execute(Apply(1, 0.5, 1.0, (Fold(8, 1.0),)))
    sentences.check(refused)
    assert shard.version == 0
    assert (shard.arena.values(0) == 1.0).all()  # type: ignore[union-attr]


def test_state_is_a_part_of_a_version() -> None:
    shard = granted({"name": "sgd"})
    push(shard, 7, 0, 0, 0, 0, 0, HUGE, 0, 0)
    push(shard, 8, 0, 0, 0, 0, 0, HUGE, 0, 0)
    with pytest.raises(NonfiniteError, match=r"at mean\[0\]"):
        shard.execute(Apply(1, 0.5, 1.0, (Fold(7, 1.0), Fold(8, 1.0))))
    assert shard.version == 0


def test_what_the_optimizer_remembers_is_a_part_of_it(sentences: Recorder) -> None:
    """Adam's square of 1e25 is infinite, its step 0: the weights would be finite, and never move again."""
    shard = granted({"name": "adam"})
    push(shard, 7, 1e25, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(NonfiniteError) as refused:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0),)))
    sentences.check(refused)


def test_a_payload_that_was_changed_behind_its_check(sentences: Recorder) -> None:
    """As a slot of shared memory may be."""
    shard = granted({"name": "sgd"})
    slot = shard.begin(7)
    slot.values[...] = 0.0
    assert shard.staging.finish(slot)
    shard.execute(Seal(7))
    slot.values[3] = np.nan
    with pytest.raises(NonfiniteError) as refused:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0),)))
    sentences.check(refused)
    assert shard.version == 0


@pytest.mark.parametrize("aggregator", ["median", "trimmed-mean"])
def test_aggregates_are_checked_too(aggregator: str, sentences: Recorder) -> None:
    knobs = {"median": {"fewest": 1}, "trimmed-mean": {"trim": 0}}[aggregator]
    shard = granted({"name": "sgd"}, tensors=TensorParts(aggregator=aggregator, knobs=knobs))
    push(shard, 7, HUGE, 0, 0, 0, 0, 0, 0, 0)
    push(shard, 8, HUGE, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(NonfiniteError) as refused:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0), Fold(8, 1.0))))
    sentences.check(refused)


@promise("No version that is not finite is ever published.")
@pytest.mark.parametrize("name", names())
def test_every_optimizer_tells(name: str) -> None:
    """Finite goes on being finite; a NaN or an infinite weight at either end of a block is found."""
    optimizer = build({"name": name, "learning_rate": 0.01})
    size = 40_000
    with Backend(2, grain=10_000) as backend:
        for bad in (None, 0, 32_767, 32_768, size - 1):
            for value in (np.nan, np.inf):
                x, slots = np.ones(size, np.float32), optimizer.init(size)
                if bad is not None:
                    x[bad] = value
                good = optimizer.update(
                    x,
                    np.full(size, 0.5, np.float32),
                    np.empty_like(x),
                    slots,
                    version=0,
                    lr_scale=1.0,
                    backend=backend,
                )
                assert good == (bad is None), (bad, value)


def test_versions_before_it_are_as_they_were(sentences: Recorder) -> None:
    """Ten updates that are fine, then one that is not: each was published in turn, the last one was not."""
    shard = granted({"name": "momentum", "learning_rate": 0.1})
    found = [shard.arena.values(0).copy()]  # type: ignore[union-attr]
    for version in range(1, 11):
        ticket = 100 + version
        shard.execute(Pin(ticket, shard.version, worker="w0"))
        push(shard, ticket, *[1.0] * 8)
        shard.execute(Apply(version, 1.0, 1.0, (Fold(ticket, 1.0),)))
        found.append(shard.arena.values(version).copy())  # type: ignore[union-attr]
    assert all((later[:5] < earlier[:5]).all() for earlier, later in pairwise(found))
    shard.execute(Pin(200, 10, worker="w0"))
    push(shard, 200, *[HUGE] * 8)
    shard.execute(Pin(201, 10, worker="w1"))
    push(shard, 201, *[HUGE] * 8)
    with pytest.raises(NonfiniteError) as refused:
        shard.execute(Apply(11, 1.0, 1.0, (Fold(200, 1.0), Fold(201, 1.0))))
    sentences.check(refused)
    assert shard.version == 10
    assert (shard.arena.values(10) == found[10]).all()  # type: ignore[union-attr]
