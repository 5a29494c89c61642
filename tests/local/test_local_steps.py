"""Local SGD and DiLoCo: the payload is how far the steps led."""

import math

import numpy as np
import pytest

from tests.local import plain
from tests.local.single_worker import ADAMW, contribute, descending, flats, worker

H = (1.0, 0.3, 2.0)


def task() -> plain.Quadratic:
    return plain.Quadratic(H, centre=0.5)


def test_local_sgd_is_its_formula() -> None:
    work = worker("local-sgd", [2, 1], steps=4, learning_rate=0.1)
    result = contribute(work, flats([1, -1], [2]), descending(task().gradient), 4)
    start = np.array([1.0, -1.0, 2.0])
    expected = start - plain.sgd_steps(start, task(), 0.1, 4)
    np.testing.assert_allclose(np.concatenate(result.flats), expected, rtol=1e-5)
    assert result.norm == pytest.approx(float(np.linalg.norm(expected)), rel=1e-5)
    # Of four batches with the numbers 0 to 3 as losses.
    assert (result.loss, result.samples) == (1.5, 12)


def test_adamw_keeps_its_moments_from_ticket_to_ticket() -> None:
    work = worker("local-adamw", [3], steps=5, learning_rate=0.02, **ADAMW)
    reference = plain.AdamW(0.02, ADAMW["weight_decay"], ADAMW["beta_1"], ADAMW["beta_2"], ADAMW["epsilon"])
    start = np.array([1.0, -1.0, 2.0])
    for _ in range(4):
        result = contribute(work, flats(start), descending(task().gradient), 5)
        x = start
        for _ in range(5):
            x = reference.step(x, task().gradient(x))
        np.testing.assert_allclose(result.flats[0], start - x, atol=3e-6)
        start = x
    # A worker that forgets them takes another way.
    forgetful = contribute(
        worker("local-adamw", [3], steps=5, learning_rate=0.02, **ADAMW),
        flats(start),
        descending(task().gradient),
        5,
    )
    again = contribute(work, flats(start), descending(task().gradient), 5)
    assert np.abs(forgetful.flats[0] - again.flats[0]).max() > 1e-3


def test_state_moves_along_and_its_change_is_pushed() -> None:
    """Every batch adds its number: 0 + 1 + 2. The gradient sees the state as it has become."""
    seen = []

    def compute(whole: np.ndarray) -> np.ndarray:
        seen.append(float(whole[-1]))
        return whole

    work = worker("local-sgd", [2], steps=3, learning_rate=0.1)
    result = contribute(work, flats([1, 1, 7]), descending(compute, state=1), 3)
    assert seen == [7, 7, 8]
    assert result.flats[0][-1] == 3
    np.testing.assert_allclose(result.flats[0][:2], 1 - 0.9**3, rtol=1e-6)
    # The norm is that of what is trained.
    assert result.norm == pytest.approx(math.sqrt(2) * (1 - 0.9**3), rel=1e-6)


def test_what_was_pulled_stays_as_it_is() -> None:
    pulled = flats([1, -1], [2])
    for flat in pulled:
        flat.flags.writeable = False
    for name, more in (("local-sgd", {}), ("local-adamw", ADAMW), ("elastic", {"alpha": 0.5})):
        contribute(
            worker(name, [2, 1], steps=2, learning_rate=0.1, **more),
            pulled,
            descending(task().gradient),
            2,
        )
    assert np.concatenate(pulled).tolist() == [1, -1, 2]


def test_a_ticket_that_comes_to_nothing_leaves_no_trace() -> None:
    """Without `keep` the same contribution comes out again, to the bit."""
    work = worker("local-adamw", [3], steps=3, learning_rate=0.02, **ADAMW)
    contribute(work, flats([1, -1, 2]), descending(task().gradient), 3)
    tries = [work.payload(flats([1, 1, 1]), descending(task().gradient), range(3)) for _ in range(2)]
    assert tries[0].flats[0].tobytes() == tries[1].flats[0].tobytes()


@pytest.mark.parametrize(
    ("name", "more"), [("local-sgd", {}), ("local-adamw", ADAMW), ("elastic", {"alpha": 0.5})]
)
def test_a_gradient_that_is_not_finite_ends_the_steps(name: str, more: dict[str, float]) -> None:
    calls = []

    def poisoned(whole: np.ndarray) -> np.ndarray:
        calls.append(1)
        return whole * (np.nan if len(calls) == 2 else 1)

    work = worker(name, [2], steps=4, learning_rate=0.1, **more)
    result = work.payload(flats([1, 2]), descending(poisoned), range(4))
    assert not math.isfinite(result.norm) and len(calls) == 2


def test_steps_that_lead_to_infinity_are_found() -> None:
    work = worker("local-sgd", [1], steps=3, learning_rate=1e30)
    result = work.payload(flats([1e20]), descending(lambda x: x), range(3))
    assert not math.isfinite(result.norm)


def test_another_incarnation_begins_with_nothing() -> None:
    work = worker("dana-slim", [1], momentum=0.9)
    ones = descending(lambda x: np.ones_like(x))
    assert contribute(work, flats([0]), ones).flats[0] == pytest.approx(1.9)
    work.renew(0)
    assert contribute(work, flats([0]), ones).flats[0] == pytest.approx(0.9 * 1.9 + 1)
    work.renew(1)
    assert contribute(work, flats([0]), ones).flats[0] == pytest.approx(1.9)
