"""The arithmetic of contributions, in single passes over memory.

The order of operations is part of the contract: replaying a log must give the same bits, so every function here states
its formula exactly. Loops are compiled without contraction: a product and a sum are rounded one by one, on every
processor. Their constants are float32, because a Python number would promote to float64. They call no other function of
ours, because compiled code is cached per file.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, LARGEST, Backend, Loop, loop

Floats = NDArray[np.float32]
Scalar = np.float32

# The upper half of the largest float32, as a number: the bits of the largest bfloat16.
LARGEST_BITS = np.float32(LARGEST.view(np.uint32) >> np.uint32(16))


def fold(total: Floats, kept: float, values: Floats, factor: float, backend: Backend = ALONE) -> None:
    """Set ``total = total * kept + values * factor``, with float32 scalars. `values` may be overwritten."""
    backend.run(fold_loop, (total, values), (np.float32(kept), np.float32(factor)))


@loop("wrff")
def fold_loop(total: Floats, values: Floats, kept: Scalar, factor: Scalar) -> None:
    for i in range(total.size):
        total[i] = total[i] * kept + values[i] * factor


def scale(values: Floats, factor: float | np.float32) -> None:
    """Set ``values *= float32(factor)``; a factor of 1 costs nothing."""
    if factor != 1.0:
        np.multiply(values, np.float32(factor), out=values)


def compensate(
    gradient: Floats, now: Floats, base: Floats, strength: float, backend: Backend = ALONE
) -> None:
    """Set ``g += (x_now - x_base) * g * g * lambda``, multiplied from left to right.

    DC-ASGD: first-order Taylor correction with lambda g*g as the diagonal of the Hessian (Zheng et al. 2017, eq. 10).
    """
    backend.run(compensate_loop, (gradient, now, base), (np.float32(strength),))


@loop("wrrf")
def compensate_loop(gradient: Floats, now: Floats, base: Floats, strength: Scalar) -> None:
    for i in range(gradient.size):
        g = gradient[i]
        gradient[i] = g + (now[i] - base[i]) * g * g * strength


def add_mean(state: Floats, deltas: Floats, total: float, out: Floats) -> None:
    """Set out = state + deltas / float32(total), the weighted mean of deltas; a total of 0 leaves the state."""
    if total == 0.0:
        out[...] = state
        return
    np.divide(deltas, np.float32(total), out=out)
    np.add(out, state, out=out)


@loop("rf")
def finite_loop(values: Floats, largest: Scalar) -> bool:
    """Return False when there is a NaN or an Inf. No early end: the loop without one is the faster."""
    good = True
    for i in range(values.size):
        good = good & (abs(values[i]) <= largest)
    return good


def squares(values: Floats, backend: Backend = ALONE) -> float | None:
    """Return the sum of all squares, in float64; None if a number is not finite.

    The order of the sum is not fixed, so its last bits may vary.
    """
    return backend.total(squares_loop, (values,), (LARGEST,)) if values.size else 0.0


@loop("rf", sums=True)
def squares_loop(values: Floats, largest: Scalar) -> float:
    good, total = True, 0.0
    for i in range(values.size):
        value = values[i]
        good = good & (abs(value) <= largest)
        total += np.float64(value) * np.float64(value)
    return total if good else -1.0


def copy_squares(target: Floats, source: NDArray[Any], backend: Backend = ALONE) -> float | None:
    """Copy `source` to `target` and return the `squares` of what was copied. `source` need not be aligned.

    One pass instead of a copy, a check and a norm, for incoming payloads. `source` holds float32, or as uint16 the bits
    of bfloat16 (the upper halves of float32 numbers).
    """
    if not target.size:
        return 0.0
    if source.dtype == np.float32:
        return backend.total(copy_squares_loop, (target, source), (LARGEST,))
    return backend.total(widen_squares_loop, (target.view(np.uint32), source), (LARGEST_BITS,))


@loop("wuf", sums=True)
def copy_squares_loop(target: Floats, source: Floats, largest: Scalar) -> float:
    good, total = True, 0.0
    for i in range(target.size):
        value = source[i]
        target[i] = value
        good = good & (abs(value) <= largest)
        total += np.float64(value) * np.float64(value)
    return total if good else -1.0


@loop("Whf", sums=True)
def widen_squares_loop(target: NDArray[np.uint32], source: NDArray[np.uint16], largest: Scalar) -> float:
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


def first_nonfinite(values: Floats, backend: Backend = ALONE) -> int | None:
    """Return the position of the first NaN or Inf, or None."""
    if backend.run(finite_loop, (values,), (LARGEST,)):
        return None
    return int(np.argmin(np.isfinite(values)))


def narrow(target: NDArray[np.uint16], source: Floats, backend: Backend = ALONE) -> None:
    """Write the bits of the nearest bfloat16 numbers, ties to even; a NaN becomes the quiet NaN of its sign."""
    backend.run(narrow_loop, (target, source.view(np.uint32)))


@loop("Hb")
def narrow_loop(target: NDArray[np.uint16], source: NDArray[np.uint32]) -> None:
    """Adding half of the last place kept, and one less where that place is even, rounds ties to even.

    It would carry a NaN's bits over into its sign: a NaN becomes the quiet one of its sign.
    """
    for i in range(target.size):
        bits = source[i]
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = ((bits >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7FC0)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        target[i] = np.uint16(quiet if nan else rounded)


# The loops that every server compiles besides its optimizer's.
LOOPS: tuple[Loop, ...] = (
    fold_loop,
    compensate_loop,
    finite_loop,
    squares_loop,
    copy_squares_loop,
    widen_squares_loop,
    narrow_loop,
)
