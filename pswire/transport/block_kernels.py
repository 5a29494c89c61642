"""The loops of block codecs, compiled by numba. One call takes whole rows. Imported when a job uses such a codec.

Each has the bits of single float32 operations: nothing is reordered or contracted (see `psserver.fast.compiler`).
Magnitudes are compared as the bits of a float32 without its sign, which order as the numbers do, with NaN above all.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]
Bits = NDArray[np.uint32]

# What a decoder found wrong in a block; indices of `blocks._WRONG`.
NONFINITE, NEGATIVE, LEVEL, ZERO, PADDING, PLACES = range(1, 7)

_INFINITE: Final = np.uint32(0x7F800000)
_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_MOST: Final = np.finfo(np.float32).max
_NONE: Final = np.float32(0)


Function = TypeVar("Function", bound=Callable[..., Any])


def _jit(*signature: str) -> Callable[[Function], Function]:
    """Compile for these types, cached on disk if possible; without types, compile together with the caller."""

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            compiled: Function = numba.njit(*signature, cache=bool(signature), **options)(function)
        except RuntimeError as error:
            # Numba raises this if no cache folder is writable.
            if "cache" not in str(error):
                raise
            compiled = numba.njit(*signature, **options)(function)
        return compiled

    return decorate


@_jit()
def _write(scale: np.float32, out: Octets, at: int, word: Floats) -> None:
    word[0] = scale
    out[at : at + 4] = word.view(np.uint8)


@_jit()
def _read(data: Octets, at: int, octets: Octets) -> np.float32:
    octets[:] = data[at : at + 4]
    return octets.view(np.float32)[0]  # type: ignore[no-any-return]


@_jit()
def _judge(scale: np.float32) -> int:
    if not np.isfinite(scale):
        return NONFINITE
    return NEGATIVE if np.signbit(scale) else 0


@_jit()
def _add(values: Floats, residual: Floats, left: Floats, bits: Bits) -> int:
    """Add, and return the place of the first sum that is not finite, or -1."""
    largest = np.uint32(0)
    for i in range(values.size):
        left[i] = values[i] + residual[i]
    for i in range(values.size):
        largest = max(largest, bits[i] & _MAGNITUDE)
    if largest >= _INFINITE:
        for i in range(values.size):
            if bits[i] & _MAGNITUDE >= _INFINITE:
                return i
    return -1


@_jit()
def _scale(largest: np.uint32, most: np.float32, word: Bits) -> np.float32:
    """Return a scale such that `most` times it, which is what the largest magnitude decodes to, stays finite."""
    word[0] = largest
    limit = np.nextafter(np.float32(_MOST / most), _NONE)
    return min(word.view(np.float32)[0] / most, limit)


@_jit()
def _level(value: np.float32, scale: np.float32, most: np.float32) -> np.float32:
    """Return the level, never -0. Among the smallest numbers, rounding of the scale could make it exceed `most`."""
    return np.float32(max(-most, min(most, np.rint(value / scale))) + _NONE)


@_jit("i8(Array(f4, 1, 'C', readonly=True), f4[::1], i8, i8, f4, b1, u1[::1], f4[::1], u4[::1])")
def encode_levels(
    values: Floats,
    residual: Floats,
    width: int,
    block: int,
    most: np.float32,
    halves: bool,
    out: Octets,
    left: Floats,
    bits: Bits,
) -> int:
    """Encode rows of `width` elements of `values` + `residual`.

    `left`: receives what encoding takes from them; `bits`: its memory as integers. `halves`: two levels per byte.
    Returns as `_add`.
    """
    bad = _add(values, residual, left, bits)
    if bad >= 0:
        return bad
    word, turned, levels = np.empty(1, np.float32), np.empty(1, np.uint32), np.empty(block, np.int8)
    at = 0
    for row in range(0, values.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            largest = np.uint32(0)
            for i in range(start, start + size):
                largest = max(largest, bits[i] & _MAGNITUDE)
            scale = _scale(largest, most, turned)
            _write(scale, out, at, word)
            at += 4
            if scale == 0:
                levels[:] = 0
            else:
                for i in range(size):
                    level = _level(left[start + i], scale, most)
                    levels[i] = np.int8(level)
                    left[start + i] -= level * scale
            if halves:
                for i in range(0, size - 1, 2):
                    out[at] = (levels[i] & 15) | (levels[i + 1] & 15) << 4
                    at += 1
                if size % 2:
                    out[at] = levels[size - 1] & 15
                    at += 1
            else:
                for i in range(size):
                    out[at + i] = np.uint8(levels[i])
                at += size
    return -1


@_jit("i8(Array(u1, 1, 'C', readonly=True), i8, i8, f4, b1, f4[::1])")
def decode_levels(data: Octets, width: int, block: int, most: np.float32, halves: bool, out: Floats) -> int:
    """Decode whole rows. Return what is wrong with them, or 0."""
    octets, levels = np.empty(4, np.uint8), np.empty(block + 1, np.int8)
    at = 0
    for row in range(0, out.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            scale = _read(data, at, octets)
            at += 4
            wrong = _judge(scale)
            if wrong:
                return wrong
            if halves:
                for i in range(0, size, 2):
                    levels[i] = np.int8((data[at] & 15 ^ 8) - 8)
                    levels[i + 1] = np.int8((data[at] >> 4 ^ 8) - 8)
                    at += 1
                if size % 2 and levels[size] != 0:
                    return PADDING
            else:
                for i in range(size):
                    levels[i] = np.int8(data[at + i])
                at += size
            least, some = np.int8(0), np.int8(0)
            for i in range(size):
                least = min(least, levels[i])
                some |= levels[i]
                out[start + i] = np.float32(levels[i]) * scale
            if least < -most:
                return LEVEL
            if scale == 0 and some != 0:
                return ZERO
    return 0


@_jit()
def _threshold(bits: Bits, start: int, size: int, heap: Bits, kept: int) -> np.uint32:
    """Return the largest magnitude that at least `kept` magnitudes reach: the root of a min-heap of the largest."""
    heap[:kept] = 0
    for i in range(start, start + size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude > heap[0]:
            place = 0
            while True:
                child = 2 * place + 1
                if child >= kept:
                    break
                if child + 1 < kept and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= magnitude:
                    break
                heap[place] = heap[child]
                place = child
            heap[place] = magnitude
    return heap[0]  # type: ignore[no-any-return]


@_jit("i8(Array(f4, 1, 'C', readonly=True), f4[::1], i8, i8, i8, u1[::1], f4[::1], u4[::1])")
def encode_largest(
    values: Floats,
    residual: Floats,
    width: int,
    block: int,
    part: int,
    out: Octets,
    left: Floats,
    bits: Bits,
) -> int:
    """Encode one in `part` elements of each block, as `encode_levels` does: rising places, then levels."""
    bad = _add(values, residual, left, bits)
    if bad >= 0:
        return bad
    most = np.float32(127)
    word, turned = np.empty(1, np.float32), np.empty(1, np.uint32)
    heap, places = np.empty(max(1, block // part), np.uint32), np.empty(max(1, block // part), np.int64)
    at = 0
    for row in range(0, values.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            kept = max(1, size // part)
            least = _threshold(bits, start, size, heap, kept)
            above, largest = 0, np.uint32(0)
            for i in range(start, start + size):
                above += (bits[i] & _MAGNITUDE) > least
                largest = max(largest, bits[i] & _MAGNITUDE)
            # Of elements that tie with the least, the first ones are sent.
            equal, found = kept - above, 0
            for i in range(start, start + size):
                magnitude = bits[i] & _MAGNITUDE
                if magnitude > least or (magnitude == least and equal > 0):
                    equal -= magnitude == least
                    places[found] = i
                    found += 1
            scale = _scale(largest, most, turned)
            _write(scale, out, at, word)
            for i in range(kept):
                place = places[i]
                out[at + 4 + 2 * i] = np.uint8((place - start) & 255)
                out[at + 5 + 2 * i] = np.uint8((place - start) >> 8)
                level = _NONE if scale == 0 else _level(left[place], scale, most)
                out[at + 4 + 2 * kept + i] = np.uint8(np.int8(level))
                left[place] -= level * scale
            at += 4 + 3 * kept
    return -1


@_jit("i8(Array(u1, 1, 'C', readonly=True), i8, i8, i8, f4[::1])")
def decode_largest(data: Octets, width: int, block: int, part: int, out: Floats) -> int:
    """Decode what `encode_largest` writes, as `decode_levels` does."""
    octets = np.empty(4, np.uint8)
    out[:] = 0
    at = 0
    for row in range(0, out.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            kept = max(1, size // part)
            scale = _read(data, at, octets)
            wrong = _judge(scale)
            if wrong:
                return wrong
            before = np.int64(-1)
            for i in range(kept):
                place = np.int64(data[at + 4 + 2 * i]) | np.int64(data[at + 5 + 2 * i]) << 8
                level = np.int8(data[at + 4 + 2 * kept + i])
                if place <= before or place >= size:
                    return PLACES
                if level == -128:
                    return LEVEL
                if scale == 0 and level != 0:
                    return ZERO
                out[start + place] = np.float32(level) * scale
                before = place
            at += 4 + 3 * kept
    return 0


@_jit("u8(Array(u4, 1, 'C', readonly=True))")
def weighted_sum(bits: Bits) -> np.uint64:
    """Return the sum of (2 i + 1) * bits[i], modulo 2**64."""
    total, weight = np.uint64(0), np.uint64(1)
    for i in range(bits.size):
        total += weight * np.uint64(bits[i])
        weight += np.uint64(2)
    return total
