"""DANA-Slim: momentum on the workers is DANA-Zero's look-ahead, in whatever order they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local import plain
from tests.local.single_worker import contribute, descending, flats, worker

RATE, MOMENTUM = 0.05, 0.9


@given(order=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_the_version_is_where_dana_zero_looks_ahead_to(order: list[tuple[int, bool]]) -> None:
    """Any worker pulls or pushes at any time: gradients are as stale as it comes."""
    task = plain.Quadratic((1.0, 0.1))
    works = [worker("dana-slim", [2], momentum=MOMENTUM) for _ in range(4)]
    zero = plain.DanaZero(np.array([1.0, -2.0]), 4, RATE, MOMENTUM)
    slim = np.array([1.0, -2.0], np.float32)
    read = [(slim, zero.view()) for _ in range(4)]
    for who, pushes in order:
        if pushes:
            ours, theirs = read[who]
            result = contribute(works[who], [ours], descending(task.gradient))
            slim = slim - np.float32(RATE) * result.flats[0]
            zero.push(who, task.gradient(theirs))
        read[who] = (slim, zero.view())
        np.testing.assert_allclose(slim, zero.view(), atol=2e-4)


def test_state_changes_pass_as_they_are() -> None:
    work = worker("dana-slim", [2], momentum=MOMENTUM)
    for _ in range(2):
        result = work.payload(flats([1, 2, 9]), descending(lambda x: x, state=1), [5])
        assert result.flats[0][-1] == 5
        work.keep()


@pytest.mark.tensorflow
def test_alone_it_is_nesterov_as_in_keras() -> None:
    import keras

    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM, nesterov=True)
    variable = keras.Variable(np.array([1.0, -2.0, 0.5], np.float32))
    work, x = worker("dana-slim", [3], momentum=MOMENTUM), variable.numpy().copy()
    rng = np.random.default_rng(2)
    for _ in range(50):
        g = rng.standard_normal(3).astype(np.float32)
        result = contribute(work, [x], descending(lambda whole, g=g: g))
        x = x - np.float32(RATE) * result.flats[0]
        optimizer.apply([g], [variable])
        np.testing.assert_allclose(x, variable.numpy(), rtol=1e-5, atol=1e-6)
