"""What staleness, batches and their remedies do to gradient descent: quadratics, by the policies' own decisions."""

import math
import random
from functools import cache

import numpy as np
import pytest

from tests.papers.descent import Descent
from tests.papers.race import Draw, exponential, turns
from tests.promises import promise

pytestmark = pytest.mark.nightly

P = 8


def ever_slower(dice: random.Random, rank: int) -> float:
    """Worker i takes i + 1 seconds."""
    return float(rank + 1)


# Linear scaling


@promise(
    "K workers at k times the rate are k steps, to second order in k a h; k a h > 2 is unstable (Goyal et al. "
    "2017)."
)
@pytest.mark.parametrize("k", [2, 4, 8])
def test_k_workers_at_k_times_the_rate_are_k_steps_while_the_rate_is_small(k: int) -> None:
    """Goyal et al. 2017, linear scaling: (1 - a h)^k and 1 - k a h agree to second order in k a h."""
    gaps = []
    for rate in (0.02, 0.01):
        one = Descent("async", {}, 1, turns, rate=rate).until(k)
        many = Descent("sync", {}, k, turns, rate=k * rate).until(1)
        assert float(many.x[0]) == pytest.approx(1 - k * rate, rel=1e-12)
        gap = float(one.x[0] - many.x[0])
        assert 0 < gap < (k * rate) ** 2 / 2
        gaps.append(gap)
    # Half the rate, a quarter of the difference.
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.1)


def test_linear_scaling_ends_where_the_one_large_step_is_unstable() -> None:
    """k a h > 2, though a single worker with a is far from any limit: the reason for a warm-up."""
    assert Descent("async", {}, 1, turns, rate=0.3).until(200).loss < 1e-9
    assert Descent("sync", {}, P, turns, rate=P * 0.24).until(200).loss < 1e-9
    assert Descent("sync", {}, P, turns, rate=P * 0.26).until(200).loss > 1e3


# Noise


@cache
def floor(name: str, rate: float, updates: int = 30000, draw: Draw = exponential, **knobs: object) -> float:
    """Mean loss once the start is forgotten, with gradient noise of variance 1."""
    run = Descent(name, knobs, P, draw, h=np.ones(8), rate=rate, noise=1.0).until(500)
    losses = [run.until(500 + step).loss for step in range(1, updates // 8)]
    return sum(losses) / len(losses)


@promise("K-sync: a K-th of the noise (Dutta et al. 2018).")
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_k_sync_has_a_kth_of_the_noise(k: int) -> None:
    """Dutta et al. 2018: a floor of at most a L sigma^2 / (2 c K); for x^2 / 2 it is a sigma^2 / (2 K (2 - a))."""
    rate = 0.2
    exact = 8 * rate / (2 * k * (2 - rate))
    measured = floor("k-sync", rate, aggregate=k)
    assert measured == pytest.approx(exact, rel=0.1)
    assert measured <= 1.1 * 8 * rate / (2 * k)


@promise("Async is ahead at first and ends higher (Dutta et al. 2018, theorem 3, figure 8).")
def test_async_is_faster_per_second_and_ends_higher() -> None:
    """Dutta et al. 2018, theorem 3 and figure 8: the trade of error for time."""
    rate = 0.1
    assert floor("async", rate) > 4 * floor("sync", rate)
    sync = Descent("sync", {}, P, h=np.ones(8), rate=rate, noise=1.0).until(4)
    concurrent = Descent("async", {}, P, h=np.ones(8), rate=rate, noise=1.0)
    while concurrent.now < sync.now:
        concurrent.until(concurrent.version + 1)
    assert concurrent.loss < sync.loss / 2


# Delays


@cache
def time_to_target(name: str, stops_at: float = 1000.0, **knobs: object) -> float:
    """Seconds until the loss is 1/400 of its first value, with the best of 12 rates; 60 workers, i s per step."""

    def seconds(rate: float) -> float:
        run = Descent(name, knobs, 60, ever_slower, h=np.linspace(0.1, 1.0, 20), rate=rate)
        first = run.loss
        while run.now < stops_at:
            loss = run.until(run.version + 1).loss
            if loss < first / 400:
                return run.now
            if not loss < 1e3 * first:
                return math.inf
        return math.inf

    return min(seconds(float(rate)) for rate in np.geomspace(0.05, 2.0, 12))


@promise(
    "With workers of all speeds: Ringmaster before delay-adaptive before async before sync (Mishchenko et al. "
    "2022, Maranjyan et al. 2025)."
)
def test_with_workers_of_all_speeds_the_remedies_win_in_order() -> None:
    """Maranjyan et al. 2025 against Mishchenko et al. 2022, async and sync, each with its best learning rate."""
    sync, plain = time_to_target("sync"), time_to_target("async")
    adaptive, ringmaster = time_to_target("delay-adaptive"), time_to_target("ringmaster", threshold=4)
    assert ringmaster < adaptive / 2 < adaptive < plain / 2 < plain < sync / 3 < sync < math.inf


@promise("At a small rate 1 / tau is slow (Zhang et al. 2016).")
def test_dividing_by_the_staleness_is_slow_where_it_is_not_needed() -> None:
    """Zhang et al. 2016, the other side of 1 / tau: at a small rate 32 workers hardly move."""
    rate, updates, n = 0.01, 400, 32
    plain = Descent("async", {}, n, turns, rate=rate).until(updates).loss
    divided = Descent("softsync", {"n": n}, n, turns, rate=rate).until(updates).loss
    assert plain < 0.01 < 0.3 < divided


# Asynchrony begets momentum


@promise("Asynchrony begets momentum 1 - 1 / M, exactly in the mean (Mitliagkas et al. 2016).")
def test_the_mean_of_asynchronous_descent_is_descent_with_momentum() -> None:
    """Mitliagkas et al. 2016: E[d_(t+1)] = (1 - 1/M) E[d_t] - (a/M) h E[x_t], exactly, for exponential workers."""
    workers, rate, steps, runs = P, 0.5, 25, 800
    paths = np.empty((runs, steps + 1))
    for seed in range(runs):
        run = Descent("async", {}, workers, seed=seed, rate=rate)
        paths[seed] = [float(run.until(step).x[0]) for step in range(steps + 1)]
    expected = [1.0, 1.0 - rate]
    for _ in range(steps - 1):
        drift = (1 - 1 / workers) * (expected[-1] - expected[-2]) - rate / workers * expected[-1]
        expected.append(expected[-1] + drift)
    error = paths.std(axis=0) / math.sqrt(runs)
    assert np.all(np.abs(paths.mean(axis=0) - expected) <= 4.5 * error + 1e-12)
    # It is the momentum that does it: plain descent would have been at 0 long ago, and never below.
    assert min(expected) < -0.3
