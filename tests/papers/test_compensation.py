"""DC-ASGD (Zheng et al. 2017): what its correction is exact for."""

import numpy as np
import pytest

from psserver.shard.arithmetic import compensate
from tests.promises import promise

LAMBDA = 0.5


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
