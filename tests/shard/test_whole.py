"""Rules that see whole variables: on several servers where each variable lies whole on one, refused elsewhere."""

import numpy as np
import pytest

from psserver.optimizers import OptimizerError, build
from psserver.shard import Apply, Fold, Hold, Install, Seal, Shard
from pswire.model.plan import Plan, VariableSpec, make_plan
from tests.sentences import Recorder

# Two servers hold one matrix and one vector each.
EVEN = [VariableSpec(name, shape) for name, shape in (("a", (6, 4)), ("b", (6, 4)), ("c", (5,)), ("d", (5,)))]
RULES = ["lamb", "adafactor"]


def trained(plan: Plan, name: str) -> list[np.ndarray]:
    """The weights after twenty updates."""
    config = {"name": name, "learning_rate": 0.1, "weight_decay": 0.01, "exclude_from_weight_decay": ["c"]}
    shards = [Shard(plan, server, build(config)) for server in range(len(plan.shards))]

    def push(ticket: int) -> None:
        draw = np.random.default_rng(ticket)
        flats = plan.scatter([draw.standard_normal(spec.shape) for spec in plan.variables])
        for shard, flat in zip(shards, flats, strict=True):
            slot = shard.begin(ticket)
            slot.values[...] = flat
            assert shard.staging.finish(slot)
            shard.execute(Seal(ticket))

    for shard in shards:
        shard.execute(Hold(1, 0, initialise=True, worker="w0"))
    push(1)
    for shard in shards:
        shard.execute(Install(1))
    for version in range(1, 21):
        for shard in shards:
            shard.execute(Hold(version + 1, version - 1, worker="w0"))
        push(version + 1)
        for shard in shards:
            shard.execute(Apply(version, 1.0, 1.0, (Fold(version + 1, 1.0),)))
    found: list[np.ndarray] = plan.gather([shard.arena.values(20) for shard in shards])  # type: ignore[misc]
    return found


@pytest.mark.parametrize("name", RULES)
def test_two_servers_with_whole_variables_have_the_bits_of_one(name: str) -> None:
    one, two = make_plan(EVEN, 1), make_plan(EVEN, 2)
    assert all(len(shard.slices) == 2 for shard in two.shards)
    for here, there in zip(trained(one, name), trained(two, name), strict=True):
        assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_a_plan_that_splits_a_variable_is_refused_by_every_server(name: str, sentences: Recorder) -> None:
    """Also by one that holds whole variables only."""
    plan = make_plan([VariableSpec("a", (6, 4)), VariableSpec("b", (60, 4))], 3)
    for server in range(3):
        with pytest.raises(OptimizerError) as refused:
            Shard(plan, server, build({"name": name}))
        sentences.check(refused)


def test_clipped_norms_need_what_they_are_of_on_one_server(sentences: Recorder) -> None:
    split = make_plan([VariableSpec("a", (6, 4)), VariableSpec("b", (60, 4))], 3)
    for server in range(3):
        with pytest.raises(OptimizerError) as refused:
            Shard(split, server, build({"name": "sgd", "clipnorm": 1.0}))
        sentences.check(refused)
        Shard(split, server, build({"name": "sgd", "clipvalue": 1.0}))
    whole = make_plan(EVEN, 2)
    for server in range(2):
        Shard(whole, server, build({"name": "sgd", "clipnorm": 1.0}))
        with pytest.raises(OptimizerError) as refused:
            Shard(whole, server, build({"name": "sgd", "global_clipnorm": 1.0}))
        sentences.check(refused)


def test_state_may_be_split() -> None:
    """No rule touches it."""
    plan = make_plan([VariableSpec("w", (2,)), VariableSpec("mean", (20,), kind="state")], 2)
    assert any(len({piece.variable for piece in shard.slices}) == 2 for shard in plan.shards)
    Shard(plan, 0, build({"name": "lamb"}))
