"""The arithmetic of contributions, block by block so that each block stays in cache.

The order of operations is part of the contract: replaying a log must give the
same bits, so every function here names its formula exactly.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

BLOCK = 1 << 15


def scale(values: Floats, factor: float) -> None:
    """values *= float32(factor); nothing is done for a factor of 1."""
    if factor != 1.0:
        np.multiply(values, np.float32(factor), out=values)


def add_scaled(total: Floats, values: Floats, factor: float) -> None:
    """total += float32(factor) * values. `values` may be used as scratch."""
    scale(values, factor)
    np.add(total, values, out=total)


def compensate(gradient: Floats, now: Floats, base: Floats, strength: float) -> None:
    """g += lambda * g * g * (x_now - x_base), in place.

    DC-ASGD: first-order Taylor correction with lambda g*g as the diagonal of
    the Hessian (Zheng et al. 2017, eq. 10).
    """
    scratch = np.empty(BLOCK, np.float32)
    for start in range(0, gradient.size, BLOCK):
        g = gradient[start : start + BLOCK]
        correction = scratch[: g.size]
        np.subtract(now[start : start + BLOCK], base[start : start + BLOCK], out=correction)
        np.multiply(correction, g, out=correction)
        np.multiply(correction, g, out=correction)
        np.multiply(correction, np.float32(strength), out=correction)
        np.add(g, correction, out=g)


def add_mean(state: Floats, deltas: Floats, total: float, out: Floats) -> None:
    """out = state + deltas / float32(total): the weighted mean of deltas; total 0 leaves the state."""
    if total == 0.0:
        out[...] = state
        return
    np.divide(deltas, np.float32(total), out=out)
    np.add(out, state, out=out)


def first_nonfinite(values: Floats) -> int | None:
    """Position of the first NaN or Inf, or None.

    The sum of squares is finite whenever all values are and none is huge: one
    fast pass decides almost always.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(values, values)):
            return None
    finite = np.isfinite(values)
    return None if finite.all() else int(np.argmin(finite))
