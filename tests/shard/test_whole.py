"""Clipping by norms: on several servers where each variable lies whole on one, refused elsewhere."""

import pytest

from psserver.optimizers import OptimizerError, build
from psserver.shard import Shard
from pswire.model.plan import VariableSpec, make_plan
from tests.sentences import Recorder

# Two servers hold one matrix and one vector each.
EVEN = [VariableSpec(name, shape) for name, shape in (("a", (6, 4)), ("b", (6, 4)), ("c", (5,)), ("d", (5,)))]


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
    """No norm is of it."""
    plan = make_plan([VariableSpec("w", (2,)), VariableSpec("mean", (20,), kind="state")], 2)
    assert any(len({piece.variable for piece in shard.slices}) == 2 for shard in plan.shards)
    Shard(plan, 0, build({"name": "sgd", "clipnorm": 1.0}))
