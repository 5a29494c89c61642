"""EASGD: what an exchange conserves, where it rests, and when it is stable."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psworker.local import LocalWork
from tests.local.single_worker import contribute, descending, flats, worker
from tests.probes import remembered
from tests.promises import promise

RATES = [0.1, 1.0, 1.9]


class Farm:
    """Workers around one centre, with fresh pulls. Everybody minimises x^2 / 2 in three dimensions."""

    def __init__(self, workers: int, alpha: float, rate: float, steps: int = 1) -> None:
        self.centre = np.array([1.0, -2.0, 3.0], np.float32)
        self.works = [
            worker("elastic", [3], alpha=alpha, learning_rate=rate, steps=steps) for _ in range(workers)
        ]
        self.steps = steps

    def exchange(self, who: int) -> None:
        result = contribute(self.works[who], [self.centre], descending(lambda x: x), self.steps)
        self.centre = self.centre - result.flats[0]  # servers' SGD at learning rate 1

    def own(self, who: int) -> np.ndarray:
        memory = remembered(self.works[who])
        return self.centre if memory is None else memory[0]

    def whole(self) -> np.ndarray:
        """Centre and all workers that have begun."""
        begun = [self.own(who) for who, work in enumerate(self.works) if work.has_own_weights]
        return np.stack([self.centre, *begun]).astype(np.float64)


def test_one_exchange_is_the_formula() -> None:
    """x = 4 after a step of 1/2 from 8; the centre is 8: e = (4 - 8) / 4, and the centre goes to 7."""
    work = worker("elastic", [1], alpha=0.25, learning_rate=0.5, steps=1)
    result = contribute(work, flats([8]), descending(lambda x: x))
    assert result.flats[0].tolist() == [1.0]
    # The worker is at 5 now. The next step is taken before the centre is seen: 2.5, e = (2.5 - 0) / 4.
    walk = work.take_steps(descending(lambda x: x), range(1))
    assert walk.x[0].tolist() == [2.5] and work.steps_taken
    unread = iter(range(1))
    assert work.payload(flats([0]), descending(lambda x: x), unread).flats[0].tolist() == [-0.625]
    assert next(unread) == 0
    work.keep()
    assert not work.steps_taken and work.has_own_weights


def test_state_is_elastic_too_and_pushed_as_a_change() -> None:
    """The batch adds 4 to the state: e = (6 - 2) / 2 for the worker, pushed with its sign."""
    work = worker("elastic", [1], alpha=0.5, learning_rate=0.5, steps=1)
    result = work.payload(flats([8, 2]), descending(lambda x: x, state=1), [4])
    assert result.flats[0].tolist() == [2.0, 2.0]


@given(
    order=st.lists(st.integers(0, 3), max_size=40),
    alpha=st.floats(0.01, 1),
    rate=st.sampled_from(RATES),
)
def test_exchanges_conserve_the_sum_and_never_lead_away(order: list[int], alpha: float, rate: float) -> None:
    farm = Farm(4, alpha, rate)
    for who in order:
        begins = not farm.works[who].has_own_weights
        start = farm.own(who).astype(np.float64)
        before, size = farm.whole(), np.linalg.norm(farm.whole())
        farm.exchange(who)
        after = farm.whole()
        # One step of rate, then an exchange: the sum changes by the step alone.
        newcomer = start if begins else 0.0
        np.testing.assert_allclose(after.sum(0), before.sum(0) + newcomer - rate * start, atol=1e-4)
        if not begins:
            assert np.linalg.norm(after) <= size * (1 + 1e-6)


@promise(
    "Elastic averaging: its fixed point, and the printed order's limit of stability (Zhang et al. 2015)."
)
@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("rate", RATES)
def test_it_comes_to_rest_at_the_optimum_only(workers: int, rate: float) -> None:
    farm = Farm(workers, 0.9 / workers, rate)
    for turn in range(600 * workers):
        farm.exchange(turn % workers)
    np.testing.assert_allclose(farm.whole(), 0, atol=1e-3)


def test_the_printed_order_has_a_limit_of_stability_that_ours_has_not() -> None:
    """x' = x - rate x - alpha (x - c) diverges beyond alpha = (4 - 2 rate) / (4 - rate) = 2/3 at rate 1."""

    def printed(alpha: float) -> float:
        x, c = 1.0, -1.0
        for _ in range(300):
            x, c = x - 1.0 * x - alpha * (x - c), c + alpha * (x - c)
        return max(abs(x), abs(c))

    assert printed(0.66) < 0.1 and printed(0.68) > 100
    farm = Farm(1, 0.9, 1.0)
    for _ in range(300):
        farm.exchange(0)
    assert np.abs(farm.whole()).max() < 0.1


def test_the_centre_is_a_moving_average_of_workers() -> None:
    """c' = (1 - alpha) c + alpha x_i, where x_i has come to."""
    farm = Farm(3, 0.3, 0.2, steps=4)
    for turn in range(12):
        who = turn % 3
        came_to = farm.own(who).astype(np.float64) * 0.8**4
        expected = 0.7 * farm.centre.astype(np.float64) + 0.3 * came_to
        farm.exchange(who)
        np.testing.assert_allclose(farm.centre, expected, rtol=1e-5, atol=1e-6)


def test_a_roaming_worker_needs_a_beginning() -> None:
    work: LocalWork = worker("elastic", [1], alpha=0.5, learning_rate=0.1, steps=2)
    assert work.rule.steps_before_pull and not work.has_own_weights
    contribute(work, flats([1]), descending(lambda x: x), 2)
    assert work.has_own_weights
    work.renew(3)
    assert not work.has_own_weights
