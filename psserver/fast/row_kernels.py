"""The kernels of `psserver.optimizers.row_kernels`, compiled by numba. Imported by the compiler's thread only."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types

from psserver.optimizers.row_kernels import Keys, Slots, Words


def _array(dtype: Any, axes: int, *, written: bool = False) -> Any:
    return types.Array(dtype, axes, "C", readonly=not written)


_READ_KEYS, _KEYS = (_array(types.uint64, 1, written=written) for written in (False, True))
_READ_SLOTS, _SLOTS = (_array(types.int32, 1, written=written) for written in (False, True))
_READ_WORDS, _WORDS = (_array(types.uint32, 2, written=written) for written in (False, True))
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


Function = TypeVar("Function", bound=Callable[..., None])


def _compiled(*signature: Any) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        try:
            compiled: Function = numba.njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError as error:
            # Numba raises this if no cache folder is writable.
            if "cache" not in str(error):
                raise
            compiled = numba.njit(signature, **_OPTIONS)(function)
        return compiled

    return decorate


@_compiled(_READ_KEYS, _READ_SLOTS, _READ_KEYS, _SLOTS)
def _find(places: Keys, slots: Slots, keys: Keys, out: Slots) -> None:
    mask = np.uint64(places.size - 1)
    for i in range(keys.size):
        key = keys[i]
        at = key & mask
        found = slots[at]
        while found >= 0 and places[at] != key:
            at = (at + np.uint64(1)) & mask
            found = slots[at]
        out[i] = found


@_compiled(_KEYS, _SLOTS, _READ_KEYS, _READ_SLOTS)
def _insert(places: Keys, slots: Slots, keys: Keys, new: Slots) -> None:
    mask = np.uint64(places.size - 1)
    for i in range(keys.size):
        at = keys[i] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        places[at] = keys[i]
        slots[at] = new[i]


@_compiled(_READ_WORDS, types.int64, _READ_SLOTS, _WORDS)
def _gather(chunk: Words, first: int, slots: Slots, out: Words) -> None:
    size, width = chunk.shape
    for i in range(slots.size):
        at = slots[i] - first
        if 0 <= at < size:
            for j in range(width):
                out[i, j] = chunk[at, j]


@_compiled(_WORDS, types.int64, _READ_SLOTS, _READ_WORDS)
def _scatter(chunk: Words, first: int, slots: Slots, rows: Words) -> None:
    size, width = chunk.shape
    for i in range(slots.size):
        at = slots[i] - first
        if 0 <= at < size:
            for j in range(width):
                chunk[at, j] = rows[i, j]


class CompiledRowKernels:
    """The compiled kernels."""

    find = staticmethod(_find)
    insert = staticmethod(_insert)
    gather = staticmethod(_gather)
    scatter = staticmethod(_scatter)
