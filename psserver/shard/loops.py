"""The passes of `psserver.shard.arithmetic` as loops to be compiled; formulas stand there.

Letters and rules: psserver.optimizers.backend and psserver.optimizers.loops.
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


@loop("rf")
def finite(values: Floats, largest: Scalar) -> bool:
    """False when there is a NaN or an Inf. No early end: the loop without one is the faster."""
    good = True
    for i in range(values.size):
        good = good & (abs(values[i]) <= largest)
    return good


@loop("wuf")
def copy_finite(target: Floats, source: Floats, largest: Scalar) -> bool:
    good = True
    for i in range(target.size):
        value = source[i]
        target[i] = value
        good = good & (abs(value) <= largest)
    return good


@loop("Wh")
def widen_finite(target: NDArray[np.uint32], source: NDArray[np.uint16]) -> bool:
    """A bfloat16 is finite unless all eight bits of its exponent are set."""
    good = True
    for i in range(target.size):
        bits = source[i]
        target[i] = np.uint32(bits) << np.uint32(16)
        good = good & ((bits & np.uint16(0x7F80)) != np.uint16(0x7F80))
    return good
