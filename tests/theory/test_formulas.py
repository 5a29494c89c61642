"""Formulas against the dumbest way to the same number: drawing, or iterating."""

import math
from random import Random
from statistics import fmean

import pytest

from pslab.theory import formulas
from pslab.theory.formulas import mean_of_kth
from pswire.config.distributions import parse

DRAWS = 40_000


@pytest.mark.parametrize(
    "text",
    [
        "constant(2)",
        "exponential(3)",
        "shifted_exponential(1, 1)",
        "uniform(1, 4)",
        "pareto(4, 1)",
        "2 * uniform(0, 1)",
    ],
)
@pytest.mark.parametrize(("k", "n"), [(1, 5), (3, 5), (5, 5)])
def test_order_statistics_are_those_of_what_the_distributions_draw(text: str, k: int, n: int) -> None:
    delay = parse(text)
    draw = delay.draws(Random(f"{text} {k}"))
    found = fmean(sorted(draw() for _ in range(n))[k - 1] for _ in range(DRAWS))
    assert mean_of_kth(delay, k, n) == pytest.approx(found, rel=0.02)


def test_order_statistics_of_the_literature() -> None:
    """Dutta et al. 2018, P = 8 and K = 4: 0.6345, 1.6345 and 1.3924; H_8 = 2.7179."""
    assert mean_of_kth(parse("exponential(1)"), 4, 8) == pytest.approx(0.6345, abs=1e-4)
    assert mean_of_kth(parse("shifted_exponential(1, 1)"), 4, 8) == pytest.approx(1.6345, abs=1e-4)
    assert mean_of_kth(parse("pareto(2, 1)"), 4, 8) == pytest.approx(1.3924, abs=1e-4)
    assert mean_of_kth(parse("exponential(1)"), 8, 8) == pytest.approx(2.7179, abs=1e-4)
    assert mean_of_kth(parse("pareto(1, 1)"), 8, 8) == math.inf
    assert math.isnan(mean_of_kth(parse("gamma(2, 1)"), 1, 2))
    with pytest.raises(ValueError, match="1 <= k <= n"):
        mean_of_kth(parse("constant(1)"), 3, 2)


@pytest.mark.parametrize("staleness", [0, 1, 3, 7])
@pytest.mark.parametrize("smooth", [1.0, 4.0])
def test_the_stable_rate_is_where_iterating_turns_from_shrinking_to_growing(
    staleness: int, smooth: float
) -> None:
    limit = formulas.stable_rate(staleness, smooth)

    def late(rate: float) -> float:
        x = [1.0] * (staleness + 1)
        for _ in range(6000):
            x = [*x[1:], x[-1] - rate * smooth * x[0]]
        return max(map(abs, x))

    assert late(0.97 * limit) < 1e-3
    assert late(1.03 * limit) > 1e3


def test_the_sync_bound_is_exact_in_its_first_step_where_the_step_is_one_over_l() -> None:
    """f = x^2 / 2 and eta = 1: x_1 is the noise of K gradients, E f(x_1) = sigma^2 / (2 K), and so says the bound."""
    said = formulas.sync_gap(1, gap=50.0, rate=1.0, convex=1.0, smooth=1.0, variance=3.0, parts=4)
    assert said == pytest.approx(3 / 8)


def test_bounds_hold_for_every_rate_that_they_allow() -> None:
    """Noise-free descent with a constant delay, on x^2 / 2: the mean of squared gradients stays below."""
    for staleness in (0, 2, 5):
        for step in range(1, 100):
            rate = step / 100
            if not formulas.delayed_applies(rate, 1.0, staleness):
                continue
            x = [1.0] * (staleness + 1)
            total = 0.0
            for version in range(1, 200):
                total += x[-1] ** 2
                x = [*x[1:], x[-1] - rate * x[0]]
                said = formulas.delayed_gradient(
                    version, gap=0.5, rate=rate, smooth=1.0, variance=0.0, parts=1, staleness=staleness
                )
                assert total / version <= said
    assert not formulas.delayed_applies(0.5, 1.0, 2) and formulas.delayed_applies(0.3, 1.0, 1)
    assert formulas.sync_applies(1.0, 1.0) and not formulas.sync_applies(1.01, 1.0)
