"""Delayed Nesterov (Liu et al. 2024) against the formula as it was printed, and at its ends."""

from collections.abc import Mapping

import numpy as np
import pytest

from psserver.optimizers import build
from tests.promises import promise

SIZE, RATE, BETA = 50, 0.7, 0.9


def gradients(count: int, size: int = SIZE) -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


def train(config: Mapping[str, object], pushes: list[np.ndarray], lr_scale: float = 1.0) -> list[np.ndarray]:
    """Versions 1 to len(pushes), from zeros."""
    optimizer = build({"learning_rate": RATE, "momentum": BETA, **config})
    x = np.zeros(SIZE, np.float32)
    state, versions = optimizer.init(SIZE), []
    for version, gradient in enumerate(pushes):
        out = np.empty_like(x)
        optimizer.update(x, gradient.copy(), out, state, version=version, lr_scale=lr_scale)
        versions.append(x := out)
    return versions


def printed(pushes: list[np.ndarray], period: int, c: float) -> list[np.ndarray]:
    """Algorithm 4 in float64: the momentum is of gradients, the learning rate outside of it."""
    x, m, total = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    versions = []
    for t, push in enumerate(pushes):
        delta = push.astype(np.float64)
        total = total + delta
        if (t + 1) % period == 0:
            m = BETA * m + total / period
            x = x - RATE * ((1 - c * period + c) * BETA * m + delta / period)
            total = np.zeros(SIZE)
        else:
            x = x - RATE * (c * BETA * m + delta / period)
        versions.append(x)
    return versions


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("period", [1, 2, 4, 7])
def test_the_printed_rule(period: int, spread: float) -> None:
    pushes = gradients(30)
    ours = train({"name": "delayed-nesterov", "period": period, "spread": spread}, pushes)
    for mine, theirs in zip(ours, printed(pushes, period, spread / period), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_period_of_one_is_nesterov_to_the_bit(spread: float) -> None:
    pushes = gradients(100)
    delayed = train({"name": "delayed-nesterov", "period": 1, "spread": spread}, pushes, lr_scale=0.3)
    plain = train({"name": "nesterov"}, pushes, lr_scale=0.3)
    assert [x.tobytes() for x in delayed] == [x.tobytes() for x in plain]


def test_a_period_is_one_nesterov_step_on_its_average() -> None:
    period, pushes = 4, gradients(40)
    delayed = train({"name": "delayed-nesterov", "period": period}, pushes)[period - 1 :: period]
    means = [np.mean(pushes[i : i + period], axis=0) for i in range(0, 40, period)]
    for mine, plain in zip(delayed, train({"name": "nesterov"}, means), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)


def test_it_is_not_a_buffer_that_steps_once_per_period() -> None:
    """What some call delayed: keep N contributions, then one step (FedBuff). Here every push moves the model."""
    pushes = gradients(4)
    versions = train({"name": "delayed-nesterov", "period": 4}, pushes)
    np.testing.assert_allclose(versions[0], -RATE * pushes[0] / 4, rtol=1e-6)
    assert len({x.tobytes() for x in versions}) == 4


def after(config: Mapping[str, object], workers: int, pushes: int = 1000) -> float:
    """|x| after so many pushes of stale pseudo-gradients: round-robin workers whose local steps halve x."""
    optimizer = build({"learning_rate": 0.7, "momentum": 0.9, **config})
    x = np.ones(1, np.float32)
    held = [x] * workers
    state = optimizer.init(1)
    for version in range(pushes):
        out, turn = np.empty_like(x), version % workers
        optimizer.update(x, held[turn] / np.float32(2), out, state, version=version, lr_scale=1.0)
        x = held[turn] = out
    return float(abs(x[0]))


@promise("Delayed Nesterov converges on stale pushes where plain momentum diverges (Liu et al. 2024).")
@pytest.mark.parametrize("workers", [4, 8])
def test_naive_momentum_diverges_on_stale_pushes_and_delayed_does_not(workers: int) -> None:
    """Outer learning rate 0.7, as in the paper's comparison of outer optimizers."""
    assert not after({"name": "nesterov"}, workers) < 1e3
    assert after({"name": "delayed-nesterov", "period": workers}, workers) < 1e-2


@pytest.mark.parametrize("knob", [{"period": 0}, {"period": 2.5}, {"spread": 1.5}, {"momentum": -0.1}])
def test_a_knob_out_of_its_range_is_refused(knob: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(knob))):
        build({"name": "delayed-nesterov", **knob})
