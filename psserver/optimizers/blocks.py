"""Blocks of an array that stay in the cache, for what runs in numpy: clipping.

It is several numpy ufuncs per element. Run over a whole arena, each of them would stream the arena through the
memory bus again.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

# 32 Ki elements are 128 KiB per array: the five arrays of Adam stay in a 1 MiB
# second-level cache, and the fixed cost of a ufunc call is below a tenth.
BLOCK = 32 * 1024

TINY = np.finfo(np.float32).tiny


def pieces(size: int) -> Iterator[slice]:
    """Iterate over consecutive blocks that stay in the cache."""
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def squares(block: Array) -> float:
    """Return the sum of the squares of one block."""
    return float(np.square(block, dtype=np.float64).sum())
