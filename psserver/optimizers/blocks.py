"""Blocks of an array that stay in the cache, for what runs in numpy: rules for whole variables, and clipping.

Such a rule is several numpy ufuncs per element. Run over a whole arena, each of them would stream the arena through the
memory bus again.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from psserver.fast import LARGEST

Array = npt.NDArray[np.float32]

# 32 Ki elements are 128 KiB per array: the five arrays of Adam stay in a 1 MiB
# second-level cache, and the fixed cost of a ufunc call is below a tenth.
BLOCK = 32 * 1024

TINY = np.finfo(np.float32).tiny


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


def finite(values: Array) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(np.isfinite(values[block]).all()) for block in pieces(values.size))


def bounded(value: float) -> np.float32:
    """Return the value as float32, at most the largest finite one."""
    return np.float32(min(value, float(LARGEST)))
