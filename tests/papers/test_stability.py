"""How large a learning rate may be: gradient descent on x^2 / 2, as the policies' own decisions make it.

With a constant staleness tau, x <- x - a x_(t - tau) is stable exactly while a < 2 sin(pi / (2 (2 tau + 1))).
Workers of equal speed under async SGD have tau = n - 1. Divided by its staleness (Zhang et al. 2016), or
with the learning rate M / max(M, tau) (Mishchenko et al. 2022), the limit stays of order one.
"""

import math

import pytest

from tests.papers.descent import Descent
from tests.papers.race import turns
from tests.promises import promise

pytestmark = pytest.mark.nightly


def limit(tau: int) -> float:
    """Of the learning rate, for a constant staleness."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def descend(name: str, knobs: dict[str, object], workers: int, rate: float, updates: int) -> list[float]:
    """x after each version; the workers take turns. Ends early when |x| passes 1e12."""
    run = Descent(name, knobs, workers, turns, rate=rate)
    xs = [1.0]
    while run.version < updates and abs(xs[-1]) <= 1e12:
        xs.append(float(run.until(run.version + 1).x[0]))
    return xs


def grows(xs: list[float]) -> bool:
    quarter = len(xs) // 4
    return max(map(abs, xs[-quarter:])) > max(map(abs, xs[quarter : 2 * quarter]))


@pytest.mark.parametrize(
    ("n", "known"), [(1, 2.0), (2, 1.0), (4, 0.4450), (8, 0.2091), (16, 0.1013), (30, 0.0532)]
)
def test_async_is_stable_up_to_the_limit_of_its_constant_staleness(n: int, known: float) -> None:
    """n workers of equal speed: the limit falls from 2 to about pi / (2 n), here to three digits."""
    assert limit(n - 1) == pytest.approx(known, abs=5e-5)
    assert not grows(descend("async", {}, n, 0.999 * limit(n - 1), 12000))
    assert grows(descend("async", {}, n, 1.001 * limit(n - 1), 12000))


@promise("With 1 / tau that limit stays between 1 and pi / 2 (Zhang et al. 2016).")
@pytest.mark.parametrize("n", [2, 4, 8, 16, 30])
@pytest.mark.parametrize("name", ["softsync", "delay-adaptive"])
def test_one_over_tau_keeps_the_limit_between_one_and_half_pi(name: str, n: int) -> None:
    """tau times the limit without it: for SGD a weight and a scale of the learning rate are the same."""
    tau = n - 1
    expected = tau * limit(tau)
    assert 1.0 <= round(expected, 12) < math.pi / 2
    knobs: dict[str, object] = {"n": n} if name == "softsync" else {"concurrency": 1}
    # The first round has smaller staleness, which leaves the asymptotic growth alone.
    assert not grows(descend(name, knobs, n, 0.998 * expected, 8000))
    assert grows(descend(name, knobs, n, 1.002 * expected, 8000))
