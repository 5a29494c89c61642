"""DC-ASGD (Zheng et al. 2017) on the real shard: what its correction is exact for, and what is not DC-ASGD."""

import numpy as np
import pytest

from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Install, Seal, Shard
from psserver.shard.arithmetic import compensate
from pswire.model.plan import VariableSpec, make_plan
from tests.promises import promise

LAMBDA = 0.5
RATE = 0.25


def barrier_gradient(x: float) -> float:
    """Of f(x) = -ln(x) / lambda, whose second derivative is lambda f'(x)^2: the approximation is exact for it."""
    return -1 / (LAMBDA * x)


def compensated(base: float, now: float) -> float:
    g = np.array([barrier_gradient(base)], np.float32)
    compensate(g, np.array([now], np.float32), np.array([base], np.float32), LAMBDA)
    return float(g[0])


@promise(
    "DC-ASGD's correction is exact to first order where lambda g g is the Hessian; at staleness 0 nothing "
    "happens (Zheng et al. 2017)."
)
def test_it_is_the_gradient_of_now_to_first_order_where_the_hessian_is_right() -> None:
    """Half the way moved since, a quarter of the error; without the correction, half."""
    errors = {way: abs(compensated(1.0, 1.0 + way) - barrier_gradient(1.0 + way)) for way in (0.2, 0.1, 0.05)}
    assert errors[0.2] / errors[0.1] == pytest.approx(4, rel=0.15)
    assert errors[0.1] / errors[0.05] == pytest.approx(4, rel=0.1)
    for way, error in errors.items():
        assert error < 1.5 * way * abs(barrier_gradient(1.0) - barrier_gradient(1.0 + way))


def shard() -> Shard:
    """One weight, 1 at version 0; plain SGD."""
    plan = make_plan([VariableSpec("w", (1,))], 1)
    made = Shard(
        plan, 0, build({"name": "sgd", "learning_rate": RATE}), versions=3, tensors=TensorParts("taylor")
    )
    made.execute(Hold(1, 0, initialise=True))
    stage(made, 1, 1.0)
    made.execute(Install(1))
    return made


def stage(made: Shard, ticket: int, value: float) -> None:
    slot = made.begin(ticket)
    slot.values[...] = np.float32(value)
    made.staging.finish(slot)
    made.execute(Seal(ticket))


def weight(made: Shard) -> float:
    values = made.arena.values(made.version)
    assert values is not None
    return float(values[0])


def test_each_worker_has_its_own_previous_weights() -> None:
    """A trap in published code: one previous weight for all, overwritten by every update, is not DC-ASGD.

    The slow worker's gradient is three versions old. The correction goes by the way since its own base; by the
    way since the last update, by any worker, it would be a third of that.
    """
    made = shard()
    made.execute(Hold(2, 0))  # the slow one
    passed = [weight(made)]
    for version in range(3):
        made.execute(Hold(10 + version, version))
        stage(made, 10 + version, -1.0)
        made.execute(Apply(version + 1, 1.0, 1.0, (Fold(10 + version, 1.0),)))
        passed.append(weight(made))
    assert passed == [1.0, 1.25, 1.5, 1.75]
    g = 2.0
    stage(made, 2, g)
    made.execute(Apply(4, 1.0, 1.0, (Fold(2, 1.0, LAMBDA),)))
    own = passed[3] - RATE * (g + LAMBDA * g * g * (passed[3] - passed[0]))
    shared = passed[3] - RATE * (g + LAMBDA * g * g * (passed[3] - passed[2]))
    assert weight(made) == pytest.approx(own, rel=1e-6)
    assert abs(own - shared) > 0.2
