"""Block-wise evaluation: one update is one pass over main memory.

An optimizer is several numpy ufuncs per element. Run over a whole arena, each of them would stream the arena through
the memory bus again. Run over blocks that stay in the cache, the arena is read once and written once. All ufuncs here
are elementwise and correctly rounded (IEEE 754 add, subtract, multiply, divide, square root), so neither the block size
nor the number of servers changes a bit.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
State = Mapping[str, Array]

# kernel(x, g, out, state): one block of each, all of the same length. It reads `x`, leaves the new values in `out`, and
# may overwrite `g`. It may use `out` as scratch until the result is there, because `out` never overlaps `x`.
Kernel = Callable[[Array, Array, Array, State], None]

# 32 Ki elements are 128 KiB per array: the five arrays of Adam stay in a 1 MiB
# second-level cache, and the fixed cost of a ufunc call is below a tenth.
BLOCK = 32 * 1024

TINY = np.finfo(np.float32).tiny
# Comparing with <= also rejects infinity and NaN.
LARGEST = np.float32(np.finfo(np.float32).max)


def run(
    kernel: Kernel,
    x: Array,
    g: Array,
    out: Array,
    state: State,
    *,
    factors: tuple[np.float32, ...] = (),
    sweep: bool = False,
    block: int = BLOCK,
) -> bool:
    """Apply `kernel` to consecutive blocks of flat arrays of equal length.

    The gradient is `g` multiplied by each of `factors`, one after the other. With `sweep`, slots are cleared of
    subnormal numbers on the way (`clear_subnormals`). Arithmetic follows IEEE 754 without warnings: overflow yields
    inf, as in Keras. Returns False if any number of `out` or of a slot is not finite.
    """
    good = True
    with np.errstate(all="ignore"):
        for start in range(0, x.size, block):
            part = slice(start, start + block)
            slots = {name: slot[part] for name, slot in state.items()}
            gradient = g[part]
            for factor in factors:
                np.multiply(gradient, factor, out=gradient)
            kernel(x[part], gradient, out[part], slots)
            written = (out[part], *slots.values())
            good = all(bool(np.isfinite(each).all()) for each in written) and good
            if sweep:
                for slot in slots.values():
                    clear_subnormals(slot, scratch=gradient)
    return good


def clear_subnormals(slot: Array, scratch: Array) -> None:
    """Set entries smaller than the least normal float32 (about 1.2e-38) to zero.

    Averages of a gradient that became exactly zero (a dead unit) decay into the subnormal range and stay there, where
    arithmetic on x86 is about 40 times slower. TensorFlow avoids that with a processor flag that numpy cannot set.
    """
    np.abs(slot, out=scratch)
    np.copyto(slot, np.float32(0), where=scratch < TINY)


def pieces(size: int) -> Iterator[slice]:
    """Iterate over consecutive blocks that stay in the cache."""
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def squares(block: Array) -> float:
    """Return the sum of the squares of one block."""
    return float(np.square(block, dtype=np.float64).sum())


def bounded(value: float) -> np.float32:
    """Return the value as float32, at most the largest finite one."""
    return np.float32(min(value, float(LARGEST)))
