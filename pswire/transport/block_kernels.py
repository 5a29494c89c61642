"""The loops of block codecs, compiled by numba. One call takes whole rows. Imported when a job uses such a codec.

Each has the bits of single float32 operations: nothing is reordered or contracted (see `pswire.compiled`).
Magnitudes are compared as the bits of a float32 without its sign, which order as the numbers do, with NaN above all.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pswire.compiled import compiled, together

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]
Bits = NDArray[np.uint32]

# What a decoder found wrong in a block; indices of `blocks._WRONG`.
NONFINITE, NEGATIVE, LEVEL, ZERO, PADDING, PLACES = range(1, 7)

_INFINITE: Final = np.uint32(0x7F800000)
_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_MOST: Final = np.finfo(np.float32).max
_NONE: Final = np.float32(0)
# 1.5 * 2**23: added to a number of magnitude below 2**22, it leaves the nearest integer.
_ROUND: Final = np.float32(12582912)


@together
def _write(scale: np.float32, out: Octets, at: int, word: Floats) -> None:
    word[0] = scale
    out[at : at + 4] = word.view(np.uint8)


@together
def _read(data: Octets, at: int, octets: Octets) -> np.float32:
    octets[:] = data[at : at + 4]
    return octets.view(np.float32)[0]  # type: ignore[no-any-return]


@together
def _judge(scale: np.float32) -> int:
    if not np.isfinite(scale):
        return NONFINITE
    return NEGATIVE if np.signbit(scale) else 0


@together
def _add(values: Floats, residual: Floats, left: Floats, bits: Bits) -> np.uint32:
    """Add, and return the largest magnitude, which is `_INFINITE` or more if a sum is not finite."""
    largest = np.uint32(0)
    for i in range(values.size):
        left[i] = values[i] + residual[i]
    for i in range(values.size):
        # Without the conversion it would be compared as 64 bits, which takes four times as long.
        largest = max(largest, np.uint32(bits[i] & _MAGNITUDE))
    return largest


@together
def _first_nonfinite(bits: Bits) -> int:
    for i in range(bits.size):
        if bits[i] & _MAGNITUDE >= _INFINITE:
            return i
    return -1


@together
def _scale(largest: np.uint32, most: np.float32, word: Bits) -> np.float32:
    """Return a scale such that `most` times it, which is what the largest magnitude decodes to, stays finite."""
    word[0] = largest
    limit = np.nextafter(np.float32(_MOST / most), _NONE)
    return min(word.view(np.float32)[0] / most, limit)


@together
def _level(value: np.float32, scale: np.float32, most: np.float32) -> np.float32:
    """Return the nearest level, ties to even, never -0. Among the smallest numbers, rounding of the scale could make it
    exceed `most`."""
    level = value / scale
    level = most if level > most else level
    level = -most if level < -most else level
    # Float32 numbers near `_ROUND` are integers. Compilers turn this into vector code, unlike np.rint.
    return np.float32(np.float32(level + _ROUND) - _ROUND)


@compiled("i8(Array(f4, 1, 'C', readonly=True), f4[::1], i8, i8, f4, b1, u1[::1], f4[::1], u4[::1])")
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
    Returns the place of the first sum that is not finite, or -1.
    """
    word, turned, levels = np.empty(1, np.float32), np.empty(1, np.uint32), np.empty(block + 1, np.float32)
    at = 0
    for row in range(0, values.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            stop = start + size
            rest = left[start:stop]
            largest = _add(values[start:stop], residual[start:stop], rest, bits[start:stop])
            if largest >= _INFINITE:
                return start + _first_nonfinite(bits[start:stop])
            scale = _scale(largest, most, turned)
            _write(scale, out, at, word)
            at += 4
            if scale == 0:
                levels[:] = 0
            else:
                for i in range(size):
                    level = _level(rest[i], scale, most)
                    levels[i] = level
                    rest[i] -= np.float32(level * scale)
            if halves:
                levels[size] = 0
                pairs = out[at : at + (size + 1) // 2]
                for i in range(pairs.size):
                    high = (np.int32(levels[2 * i + 1]) & 15) << 4
                    pairs[i] = np.uint8((np.int32(levels[2 * i]) & 15) | high)
                at += pairs.size
            else:
                octets = out[at : at + size]
                for i in range(size):
                    octets[i] = np.uint8(np.int32(levels[i]))
                at += size
    return -1


@compiled("i8(Array(u1, 1, 'C', readonly=True), i8, i8, f4, b1, f4[::1])")
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
                pairs = data[at : at + (size + 1) // 2]
                for i in range(pairs.size):
                    levels[2 * i] = np.int8((np.int32(pairs[i]) & 15 ^ 8) - 8)
                    levels[2 * i + 1] = np.int8((np.int32(pairs[i]) >> 4 ^ 8) - 8)
                at += pairs.size
                if size % 2 and levels[size] != 0:
                    return PADDING
            else:
                coded = data[at : at + size]
                for i in range(size):
                    levels[i] = np.int8(coded[i])
                at += size
            least, some = np.int8(0), np.int8(0)
            for i in range(size):
                least = levels[i] if levels[i] < least else least
                some |= levels[i]
            into = out[start : start + size]
            for i in range(size):
                into[i] = np.float32(levels[i]) * scale
            if least < -most:
                return LEVEL
            if scale == 0 and some != 0:
                return ZERO
    return 0


@together
def _count(bits: Bits, least: np.uint32) -> np.uint32:
    """Count the magnitudes that are `least` or more."""
    count = np.uint32(0)
    for i in range(bits.size):
        count += np.uint32(np.uint32(bits[i] & _MAGNITUDE) >= least)
    return count


@together
def _threshold(bits: Bits, largest: np.uint32, kept: int) -> np.uint32:
    """Return a magnitude that fewer than `kept` exceed, or exactly `kept`; and in the first case `kept` or more reach.

    Found bit by bit, from the top: each count is a loop that a compiler turns into vector code.
    """
    least = np.uint32(0)
    for bit in range(30, -1, -1):
        higher = least | np.uint32(1) << np.uint32(bit)
        if higher > largest:
            continue
        count = _count(bits, higher)
        if count == kept:
            return np.uint32(higher - np.uint32(1))
        if count > kept:
            least = higher
    return least


@compiled("i8(Array(f4, 1, 'C', readonly=True), f4[::1], i8, i8, i8, u1[::1], f4[::1], u4[::1])")
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
    most = np.float32(127)
    word, turned = np.empty(1, np.float32), np.empty(1, np.uint32)
    places = np.empty(max(1, block // part), np.int64)
    at = 0
    for row in range(0, values.size, width):
        for start in range(row, row + width, block):
            size = min(block, row + width - start)
            stop, kept = start + size, max(1, size // part)
            largest = _add(values[start:stop], residual[start:stop], left[start:stop], bits[start:stop])
            if largest >= _INFINITE:
                return start + _first_nonfinite(bits[start:stop])
            least = _threshold(bits[start:stop], largest, kept)
            above = np.int64(_count(bits[start:stop], least + np.uint32(1)))
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


@compiled("i8(Array(u1, 1, 'C', readonly=True), i8, i8, i8, f4[::1])")
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


@compiled("u8(Array(u4, 1, 'C', readonly=True), u8)")
def weighted_sum(bits: Bits, start: np.uint64) -> np.uint64:
    """Return the sum of (2 (start + i) + 1) * bits[i], modulo 2**64."""
    total, weight = np.uint64(0), np.uint64(2) * start + np.uint64(1)
    for i in range(bits.size):
        total += (weight + np.uint64(2) * np.uint64(i)) * np.uint64(bits[i])
    return total
