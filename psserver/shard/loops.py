"""The passes of `psserver.shard.arithmetic` as loops to be compiled; formulas stand there.

Letters and rules: psserver.optimizers.backend. Compiled without contraction: a product
and a sum are rounded one by one, on every processor. Constants are float32, for a Python number would make float64.
Nothing here calls a function of ours: compiled code is cached per file.
"""

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers.backend import loop

Floats = NDArray[np.float32]
Scalar = np.float32


@loop("wrff")
def fold(total: Floats, values: Floats, kept: Scalar, factor: Scalar) -> None:
    for i in range(total.size):
        total[i] = total[i] * kept + values[i] * factor


@loop("wrrf")
def compensate(gradient: Floats, now: Floats, base: Floats, strength: Scalar) -> None:
    for i in range(gradient.size):
        g = gradient[i]
        gradient[i] = g + (now[i] - base[i]) * g * g * strength


@loop("wrrwfffff")
def adaptive_taylor(
    gradient: Floats,
    now: Floats,
    base: Floats,
    mean: Floats,
    strength: Scalar,
    kept: Scalar,
    gain: Scalar,
    epsilon: Scalar,
    tiny: Scalar,
) -> None:
    """Formula: psserver.shard.compensators.AdaptiveTaylor."""
    for i in range(gradient.size):
        g = gradient[i]
        m = mean[i] * kept + g * g * gain
        mean[i] = np.float32(0) if m < tiny else m
        gradient[i] = g + (now[i] - base[i]) * g * g * strength / np.sqrt(mean[i] + epsilon)


@loop("wrrwrfffffff")
def gap_aware(
    gradient: Floats,
    now: Floats,
    base: Floats,
    mean: Floats,
    step: Floats | None,
    strength: Scalar,
    kept: Scalar,
    gain: Scalar,
    weight: Scalar,
    unit: Scalar,
    least: Scalar,
    tiny: Scalar,
) -> None:
    """Formula: psserver.shard.compensators.GapAware; `step` is None where the optimizer keeps none."""
    for i in range(gradient.size):
        u = gradient[i]
        if step is not None:
            u = step[i]
        m = mean[i] * kept + u * u * gain
        mean[i] = np.float32(0) if m < tiny else m
        size = np.sqrt(mean[i] / weight) * unit + least
        gradient[i] = gradient[i] / (abs(now[i] - base[i]) * strength / size + np.float32(1))


@loop("rf")
def finite(values: Floats, largest: Scalar) -> bool:
    """False when there is a NaN or an Inf. No early end: the loop without one is the faster."""
    good = True
    for i in range(values.size):
        good = good & (abs(values[i]) <= largest)
    return good


@loop("rf", sums=True)
def squares(values: Floats, largest: Scalar) -> float:
    good, total = True, 0.0
    for i in range(values.size):
        value = values[i]
        good = good & (abs(value) <= largest)
        total += np.float64(value) * np.float64(value)
    return total if good else -1.0


@loop("wuf", sums=True)
def copy_squares(target: Floats, source: Floats, largest: Scalar) -> float:
    good, total = True, 0.0
    for i in range(target.size):
        value = source[i]
        target[i] = value
        good = good & (abs(value) <= largest)
        total += np.float64(value) * np.float64(value)
    return total if good else -1.0


@loop("Whf", sums=True)
def widen_squares(target: NDArray[np.uint32], source: NDArray[np.uint16], largest: Scalar) -> float:
    """Without their sign, bfloat16 numbers are in the order of their bits. `largest`: bits, as a whole number."""
    good, total = True, 0.0
    for i in range(target.size):
        bits = source[i]
        wide = np.uint32(np.uint32(bits) << np.uint32(16))
        target[i] = wide
        good = good & bool(np.float32(bits & np.uint16(0x7FFF)) <= largest)
        value = np.float64(wide.view(np.float32))
        total += value * value
    return total if good else -1.0


@loop("Hb")
def narrow(target: NDArray[np.uint16], source: NDArray[np.uint32]) -> None:
    """Adding half of the last place kept, and one less where that place is even, rounds ties to even.

    It would carry a NaN's bits over into its sign: a NaN becomes the quiet one of its sign.
    """
    for i in range(target.size):
        bits = source[i]
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = ((bits >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7FC0)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        target[i] = np.uint16(quiet if nan else rounded)
