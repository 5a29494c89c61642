"""The update rules as fused loops: each element of each array is read once and written once.

The numpy kernel in the rule's own file, where the formula and its source stand,
is the fallback of its loop wherever that is not compiled: the same operations on float32 in the same
order, hence the same bits. Arguments: x, g, out, the slots, the scalars of
the rule, then

    factor, scale   the gradient is ``g * factor * scale``
    tiny            slots closer to zero than this are cleared; 0 clears none

They return False where a number of `out` or of a slot is not finite: such a version is never published, and a check
on the way costs no pass over memory.

`decay`, where there is one, is decoupled weight decay: the update starts from ``x - x * decay * rate``.

Compiled without contraction: a product and a sum are rounded one by one, on
every processor. Constants are float32, for a Python number would make float64.
Nothing here calls a function of ours: compiled code is cached per file.
"""

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array

Scalar = np.float32


@loop("rrwfffff")
def sgd(
    x: Array,
    g: Array,
    out: Array,
    rate: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - g[i] * factor * scale * rate
        good = good & (abs(out[i]) <= LARGEST)
    return good


@loop("rrwwffffff")
def momentum(
    x: Array,
    g: Array,
    out: Array,
    velocity: Array,
    rate: Scalar,
    kept: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        v = velocity[i] * kept - g[i] * factor * scale * rate
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start + v
        good = good & (abs(out[i]) <= LARGEST)
        velocity[i] = np.float32(0) if abs(v) < tiny else v
        good = good & (abs(v) <= LARGEST)
    return good


@loop("rrwwffffff")
def nesterov(
    x: Array,
    g: Array,
    out: Array,
    velocity: Array,
    rate: Scalar,
    kept: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        step = g[i] * factor * scale * rate
        v = velocity[i] * kept - step
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start + (v * kept - step)
        good = good & (abs(out[i]) <= LARGEST)
        velocity[i] = np.float32(0) if abs(v) < tiny else v
        good = good & (abs(v) <= LARGEST)
    return good


@loop("rrwwwfffffffff")
def delayed_nesterov(
    x: Array,
    g: Array,
    out: Array,
    velocity: Array,
    period_sum: Array,
    rate: Scalar,
    kept: Scalar,
    length: Scalar,
    first: Scalar,
    last: Scalar,
    weight: Scalar,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    """`first` and `last` are 1 for the first and the last update of a period, else 0."""
    good = True
    for i in range(x.size):
        step = g[i] * factor * scale * rate
        total = step
        if first == np.float32(0):
            total = period_sum[i] + step
        v = velocity[i]
        if last != np.float32(0):
            v = velocity[i] * kept - total / length
        out[i] = x[i] + (v * kept * weight - step / length)
        good = good & (abs(out[i]) <= LARGEST)
        period_sum[i] = np.float32(0) if abs(total) < tiny else total
        good = good & (abs(total) <= LARGEST)
        velocity[i] = np.float32(0) if abs(v) < tiny else v
        good = good & (abs(v) <= LARGEST)
    return good


@loop("rrwwwwfffffffff")
def adam(
    x: Array,
    g: Array,
    out: Array,
    momentum: Array,
    velocity: Array,
    velocity_hat: Array | None,
    alpha: Scalar,
    gain_1: Scalar,
    gain_2: Scalar,
    epsilon: Scalar,
    rate: Scalar | None,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    """Adam and AdamW; `velocity_hat` is None without amsgrad, `rate` and `decay` are None for Adam."""
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        mean = momentum[i] + (gradient - momentum[i]) * gain_1
        square = velocity[i] + (gradient * gradient - velocity[i]) * gain_2
        largest = square
        if velocity_hat is not None:
            largest = np.maximum(velocity_hat[i], square)
            velocity_hat[i] = np.float32(0) if abs(largest) < tiny else largest
            good = good & (abs(largest) <= LARGEST)
        start = x[i]
        if decay is not None and rate is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - mean * alpha / (np.sqrt(largest) + epsilon)
        good = good & (abs(out[i]) <= LARGEST)
        momentum[i] = np.float32(0) if abs(mean) < tiny else mean
        good = good & (abs(mean) <= LARGEST)
        velocity[i] = np.float32(0) if abs(square) < tiny else square
        good = good & (abs(square) <= LARGEST)
    return good


@loop("rrwwffffff")
def adagrad(
    x: Array,
    g: Array,
    out: Array,
    accumulator: Array,
    rate: Scalar,
    epsilon: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        total = accumulator[i] + gradient * gradient
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - gradient * rate / np.sqrt(total + epsilon)
        good = good & (abs(out[i]) <= LARGEST)
        accumulator[i] = np.float32(0) if abs(total) < tiny else total
        good = good & (abs(total) <= LARGEST)
    return good


@loop("rrwwwwfffffffff")
def rmsprop(
    x: Array,
    g: Array,
    out: Array,
    velocity: Array,
    momentum: Array | None,
    average: Array | None,
    rate: Scalar,
    rho: Scalar,
    gain: Scalar,
    epsilon: Scalar,
    repeated: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    """`momentum` is None where nothing is repeated, `average` is None unless centered."""
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        square = velocity[i] * rho + gradient * gradient * gain
        spread = square
        if average is not None:
            mean = average[i] * rho + gradient * gain
            spread = square - mean * mean
            average[i] = np.float32(0) if abs(mean) < tiny else mean
            good = good & (abs(mean) <= LARGEST)
        spread = spread + epsilon
        if average is not None:
            spread = epsilon if spread <= np.float32(0) else spread
        step = gradient * rate / np.sqrt(spread)
        if momentum is not None:
            step = momentum[i] * repeated + step
            momentum[i] = np.float32(0) if abs(step) < tiny else step
            good = good & (abs(step) <= LARGEST)
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - step
        good = good & (abs(out[i]) <= LARGEST)
        velocity[i] = np.float32(0) if abs(square) < tiny else square
        good = good & (abs(square) <= LARGEST)
    return good
