"""What correcting stale gradients buys, and its price: eight equal workers on a quadratic; and two forms of DANA.

Everybody's staleness is n - 1 = 7, so plain asynchronous SGD is stable below 2 sin(pi / 30) = 0.2091 (largest
curvature 1) and diverges above it. DC-ASGD: Zheng et al. 2017; Gap-Aware: Barkai et al. 2020.
"""

import numpy as np
import pytest

from pslab.simulator.store import ShardStore
from tests.promises import promise
from tests.simulator.lab import experiment, simulate

pytestmark = pytest.mark.nightly


def distance(policy: str, rate: float, optimizer: str = "sgd") -> float:
    """From the optimum, after 150 rounds from distance sqrt(10)."""
    run = simulate(
        experiment(
            policy,
            workers=8,
            optimizer={"name": optimizer, "learning_rate": rate},
            simulation={
                "problem": "quadratic",
                "compute": "constant(1)",
                "options": {"batches_per_epoch": 150, "condition": 10.0},
            },
        )
    )
    assert run.max_staleness == 7
    assert isinstance(run.cluster.store, ShardStore)
    return float(np.linalg.norm(run.cluster.store.weights()["x"].astype(np.float64)))


@promise(
    "Gradients too old for async converge when Gap-Aware or DC-ASGD-a corrects them; a constant lambda bounds "
    "them (Barkai et al. 2020, Zheng et al. 2017)."
)
@pytest.mark.parametrize("policy", ["gap-aware", "dc-asgd-a"])
def test_beyond_the_threshold_the_corrected_still_converge(policy: str) -> None:
    assert distance("async", 0.3) > 1e12
    assert distance(policy, 0.3) < 0.1


def test_a_constant_lambda_keeps_it_bounded_at_least() -> None:
    """g' = g (1 + lambda g (x - x_base)): it bites where gradients are large only, and leaves a swing."""
    assert distance("dc-asgd", 0.3) < 30


def test_with_momentum_gap_aware_measures_in_steps_of_momentum() -> None:
    assert distance("async", 0.03, "momentum") > 1e6
    assert distance("gap-aware", 0.03, "momentum") < 0.1


@promise("The price of Gap-Aware is speed where nothing was wrong (Barkai et al. 2020).")
def test_the_price_of_gap_aware_is_speed_where_nothing_was_wrong() -> None:
    assert distance("async", 0.05) < 0.01 < 0.05 < distance("gap-aware", 0.05)


def test_the_adaptive_correction_diverges_where_the_rate_is_far_too_large() -> None:
    """No cure for everything: the correction grows with the gap, whose square root tames only the gradient."""
    assert not distance("dc-asgd-a", 0.8) < 1e3
