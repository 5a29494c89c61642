"""The loops of `pswire.model.tables.unique` and `sums`, compiled by numba. Imported by `compile_batches` only."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Places = NDArray[np.int32]
Floats = NDArray[np.float32]
Function = TypeVar("Function", bound=Callable[..., Any])


def _jit(signature: str) -> Callable[[Function], Function]:
    """Compile for these types, cached on disk if possible."""

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            compiled: Function = numba.njit(signature, cache=True, **options)(function)
        except RuntimeError as error:
            # Numba raises this if no cache folder is writable.
            if "cache" not in str(error):
                raise
            compiled = numba.njit(signature, **options)(function)
        return compiled

    return decorate


@_jit("i8(Array(u8, 1, 'C', readonly=True), i4[::1], u8[::1], i4[::1])")
def _number(keys: Keys, places: Places, found: Keys, inverse: Places) -> int:
    """Number keys in the order in which each comes first. `places`: a power of two of -1, more than there are keys."""
    mask, count = np.uint64(places.size - 1), 0
    for i in range(keys.size):
        key = keys[i]
        at = key & mask
        number = places[at]
        while number >= 0 and found[number] != key:
            at = (at + np.uint64(1)) & mask
            number = places[at]
        if number < 0:
            number = count
            places[at] = number
            found[number] = key
            count += 1
        inverse[i] = number
    return count


@_jit("void(Array(i4, 1, 'C', readonly=True), i4[::1])")
def _replace(ranks: Places, inverse: Places) -> None:
    for i in range(inverse.size):
        inverse[i] = ranks[inverse[i]]


@_jit("void(Array(i4, 1, 'C', readonly=True), Array(f4, 2, 'C', readonly=True), f4[:, ::1])")
def add(inverse: Places, gradients: Floats, total: Floats) -> None:
    """Add each gradient to its row, in the order of positions."""
    for i in range(inverse.size):
        row = inverse[i]
        for j in range(total.shape[1]):
            total[row, j] += gradients[i, j]


def unique(keys: Keys) -> tuple[Keys, Places]:
    """Return the sorted unique keys, and of each key its position among them."""
    # Less than half full, so that probes are short.
    places = np.full(1 << (2 * keys.size).bit_length(), -1, np.int32)
    found, inverse = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int32)
    found = found[: _number(keys, places, found, inverse)]
    order = np.argsort(found)
    ranks = np.empty(order.size, np.int32)
    ranks[order] = np.arange(order.size, dtype=np.int32)
    _replace(ranks, inverse)
    return found[order], inverse
