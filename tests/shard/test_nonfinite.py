"""Elements that would not be finite keep their old values, and everything else advances."""

import numpy as np
import pytest

from psserver.fast import Backend
from psserver.optimizers import build, names
from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Install, Seal, Shard, VersionMade
from pswire.model.plan import VariableSpec, make_plan
from tests.promises import promise

PLAN = make_plan([VariableSpec("w", (5,)), VariableSpec("mean", (3,), kind="state")], 1)
HUGE = 3e38


def granted(optimizer: dict[str, object], **options: object) -> Shard:
    """Version 0 is ones everywhere, and tickets 7 (of w7) and 8 (of w8) are open."""
    shard = Shard(PLAN, 0, build(optimizer), **options)  # type: ignore[arg-type]
    shard.execute(Hold(1, 0, initialise=True, worker="w7"))
    push(shard, 1, *[1.0] * 8)
    shard.execute(Install(1))
    for ticket in (7, 8):
        shard.execute(Hold(ticket, 0, worker=f"w{ticket}"))
    return shard


def push(shard: Shard, ticket: int, *values: float) -> None:
    slot = shard.begin(ticket)
    slot.values[...] = values
    assert shard.checks.nonfinite(slot.values) is None
    assert shard.staging.finish(slot)
    shard.execute(Seal(ticket))


def values(shard: Shard) -> list[float]:
    found = shard.arena.values(shard.version)
    assert found is not None
    return list(map(float, found))


def test_state_of_layers_is_kept_back_by_itself() -> None:
    shard = granted({"name": "sgd", "learning_rate": 1.0})
    push(shard, 7, 1, 0, 0, 0, 0, HUGE, 1, HUGE)
    push(shard, 8, 1, 0, 0, 0, 0, HUGE, 1, 1)
    shard.execute(Apply(1, 0.5, 1.0, (Fold(7, 1.0), Fold(8, 1.0))))
    assert values(shard)[:-1] == [0, 1, 1, 1, 1, 1, 2]
    assert values(shard)[-1] == pytest.approx(HUGE / 2)
    assert shard.fact == VersionMade(1, {"mean": 1}, 8)


def test_a_payload_that_was_changed_behind_its_check() -> None:
    """As a slot of shared memory may be."""
    shard = granted({"name": "sgd", "learning_rate": 1.0})
    slot = shard.begin(7)
    slot.values[...] = 1.0
    assert shard.staging.finish(slot)
    shard.execute(Seal(7))
    slot.values[3] = np.nan
    shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0),)))
    assert values(shard) == [0, 0, 0, 1, 0, 2, 2, 2]
    assert shard.fact.kept == {"w": 1}


def test_one_of_several_groups_is_changed_but_for_an_element() -> None:
    plan = make_plan([VariableSpec("a", (4, 2))], 1)
    shard = Shard(
        plan, 0, build({"name": "nesterov", "learning_rate": 1.0}), tensors=TensorParts(fragments=2)
    )
    shard.execute(Hold(1, 0, initialise=True, worker="w7"))
    push(shard, 1, *[1.0] * 8)
    shard.execute(Install(1))
    shard.execute(Hold(7, 0, worker="w7"))
    turn = shard.groups.of(0, 0).take(np.arange(8, dtype=np.float32)).astype(int)
    gradient = np.zeros(8)
    gradient[turn] = 1.0
    gradient[turn[0]] = HUGE
    push(shard, 7, *gradient)
    shard.execute(Apply(1, 2.0, 1.0, (Fold(7, 1.0),)))
    moved = np.array(values(shard)) != 1.0
    assert sorted(np.flatnonzero(moved)) == sorted(turn[1:])
    assert all((slot != 0).tolist() == moved.tolist() for slot in shard.slots.values())
    assert shard.fact.elements == turn.size
    assert shard.fact.kept == {"a": 1}


@promise("No version that is not finite is ever published.")
@pytest.mark.parametrize("name", names())
def test_every_optimizer_tells(name: str) -> None:
    """Finite goes on being finite; a NaN or an infinite weight at either end of a block is found, and marked."""
    optimizer = build({"name": name, "learning_rate": 0.01})
    size = 40_000
    with Backend(2, grain=10_000) as backend:
        for bad in (None, 0, 32_767, 32_768, size - 1):
            for value in (np.nan, np.inf):
                x, slots = np.ones(size, np.float32), optimizer.init(size)
                if bad is not None:
                    x[bad] = value
                out = np.empty_like(x)
                good = optimizer.update(
                    x,
                    np.full(size, 0.5, np.float32),
                    out,
                    slots,
                    version=0,
                    lr_scale=1.0,
                    backend=backend,
                )
                assert good == (bad is None), (bad, value)
                marked = np.flatnonzero(np.isnan(out))
                expected = range(size) if optimizer.whole else [bad]
                assert marked.tolist() == ([] if bad is None else list(expected))


def test_what_is_kept_back_is_told_by_variable() -> None:
    shard = granted({"name": "momentum", "learning_rate": 0.1})
    push(shard, 7, *[0.0] * 2, *[HUGE] * 6)
    push(shard, 8, *[0.0] * 2, *[HUGE] * 6)
    shard.execute(Apply(1, 1.0, 1.0, (Fold(7, 1.0), Fold(8, 1.0))))
    assert values(shard) == [1.0] * 8
    assert shard.fact == VersionMade(1, {"w": 3, "mean": 3}, 8)


def test_krum_chooses_nothing_that_is_not_finite() -> None:
    """Factors that make three of five contributions infinite: nobody is near enough to any, and nothing moves."""
    tensors = TensorParts(aggregator="krum", knobs={"byzantine": 1, "select": 3})
    for bad, moved in ((1, True), (2, True), (3, False)):
        shard = granted({"name": "sgd", "learning_rate": 1.0}, tensors=tensors, staging=8)
        for ticket in range(20, 25):
            shard.execute(Hold(ticket, 0, worker=f"w{ticket}"))
            push(shard, ticket, *[HUGE if ticket < 20 + bad else 1.0] * 5, *[0.0] * 3)
        factors = [2.0 if ticket < 20 + bad else 0.5 for ticket in range(20, 25)]
        shard.execute(Apply(1, 1.0, 1.0, tuple(map(Fold, range(20, 25), factors))))
        assert values(shard)[:5] == [0.5 if moved else 1.0] * 5
        assert shard.fact.kept == ({} if moved else {"w": 5})
