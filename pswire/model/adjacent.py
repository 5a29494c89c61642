"""Parts of one array, joined again without a copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the numbers of at least one array of one dtype, one array behind the other, flat.

    Parts of one array that lie one behind the other are not copied.
    """
    if len(parts) == 1:
        return parts[0].reshape(-1)
    filled = [part for part in parts if part.size] or [parts[0]]
    first = filled[0]
    base, at = first.base, _address(first)
    if isinstance(base, np.ndarray) and base.dtype == first.dtype and base.flags.c_contiguous:
        begin = (at - _address(base)) // base.itemsize
        for part in filled:
            if part.base is not base or not part.flags.c_contiguous or _address(part) != at:
                break
            at += part.nbytes
        else:
            return base.reshape(-1)[begin : begin + sum(part.size for part in filled)]
    return np.concatenate([part.reshape(-1) for part in filled])


def _address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
