"""Parts of one array, joined again without a copy."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Cut(tuple[NDArray[Any], ...]):
    """Parts of one flat array, one behind the other, that remember it: `whole`. A part may have more axes."""

    whole: NDArray[Any]

    @classmethod
    def of(cls, whole: NDArray[Any], parts: Iterable[NDArray[Any]]) -> "Cut":
        """Return the parts, which are all of `whole`, in order."""
        made = cls(parts)
        made.whole = whole
        return made


def cut(whole: NDArray[Any], sizes: Sequence[int]) -> Cut:
    """Return parts of these sizes, which add up to the array's."""
    ends = accumulate(sizes)
    return Cut.of(whole, (whole[stop - size : stop] for stop, size in zip(ends, sizes, strict=True)))


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the numbers of at least one array of one dtype, one array behind the other, flat.

    Parts of one array that lie one behind the other are not copied.
    """
    if isinstance(parts, Cut):
        return parts.whole
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
