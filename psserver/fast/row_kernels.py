"""The loops of the kernels of `psserver.fast.rows`, which imports this module when the first is called."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psserver.fast.rows import BUCKET_BITS, SPREAD, Floats, Keys, Slots
from pswire.compiled import compiled, together


def _array(dtype: Any, axes: int, *, written: bool = False) -> Any:
    return types.Array(dtype, axes, "C", readonly=not written)


_READ_KEYS, _KEYS = (_array(types.uint64, 1, written=written) for written in (False, True))
_READ_SLOTS, _SLOTS = (_array(types.int32, 1, written=written) for written in (False, True))
_READ_WORDS, _WORDS = (_array(types.uint32, 2, written=written) for written in (False, True))
_READ_ROWS, _ROWS = (_array(types.float32, 2, written=written) for written in (False, True))
_READ_ADDRESSES = _array(types.int64, 1)
_FLOATS, _FLAT = _array(types.float32, 1, written=True), _array(types.uint32, 1, written=True)
Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(*arguments: Any, returns: Any = types.void) -> Callable[[Function], Function]:
    return compiled(returns(*arguments))


def _copier(words: int) -> Any:
    """Return a loop that copies a fixed number of words from address to address, in one step."""

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(context: Any, source: Any, target: Any) -> Any:
        del context, source, target

        def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(32), words).as_pointer()
            here, there = (builder.inttoptr(address, pointer) for address in arguments)
            builder.store(builder.load(here, align=4), there, align=4)
            return target.get_dummy_value()

        return types.void(types.int64, types.int64), build

    return copy


_copy_16, _copy_4, _copy_1 = map(_copier, (16, 4, 1))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def copy_words(source: int, target: int, words: int) -> None:
    """Copy words from address to address. A call of memcpy takes longer for so few."""
    at, end = np.int64(0), np.int64(4 * words)
    while at + 64 <= end:
        _copy_16(source + at, target + at)
        at += 64
    while at + 16 <= end:
        _copy_4(source + at, target + at)
        at += 16
    while at < end:
        _copy_1(source + at, target + at)
        at += 4


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(context: Any, address: Any) -> Any:
    """Ask for the line at an address, which may be any number, before it is needed."""
    del context, address

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole, pointer = ir.IntType(32), cgutils.voidptr_t
        form = ir.FunctionType(ir.VoidType(), [pointer, whole, whole, whole])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], form)
        place = builder.inttoptr(arguments[0], pointer)
        builder.call(function, [place, *(whole(number) for number in (0, 3, 1))])
        return target.get_dummy_value()

    return types.void(types.int64), build


# So many rows ahead. Memory answers meanwhile.
AHEAD = 12
_LINE = 64


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def expect_row(addresses: Any, words: int, bits: int, slots: Slots, i: int, first: int, width: int) -> None:
    """Prefetch `width` words of the row of slot `i`, if there is one."""
    if i < slots.size and slots[i] >= 0:
        slot = np.int64(slots[i])
        at = addresses[slot >> bits] + 4 * ((slot & ((1 << bits) - 1)) * words + first)
        for line in range(0, 4 * width, _LINE):
            _prefetch(at + line)


@intrinsic  # type: ignore[untyped-decorator]
def _key_at(context: Any, address: Any) -> Any:
    """Return the key of the place at an address, whose slot has been looked at."""
    del context, address

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=4)

    return types.uint64(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _slot_at(context: Any, address: Any) -> Any:
    """Return the slot of the place at an address."""
    del context, address

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(builder.add(arguments[0], ir.IntType(64)(8)), ir.IntType(32).as_pointer())
        return builder.load_atomic(pointer, "acquire", 4)

    return types.int32(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _take_place(context: Any, address: Any, key: Any, slot: Any) -> Any:
    """Write key and slot to the place at an address: the slot last, for readers in other threads."""
    del context, address, key, slot

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, key, slot = arguments
        builder.store(key, builder.inttoptr(address, ir.IntType(64).as_pointer()), align=4)
        pointer = builder.inttoptr(builder.add(address, ir.IntType(64)(8)), ir.IntType(32).as_pointer())
        builder.store_atomic(slot, pointer, "release", 4)
        return target.get_dummy_value()

    return types.void(types.int64, types.uint64, types.int32), build


# Bytes of a place.
_PLACE = 12


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _first(key: Any, bits: Any, salt: Any) -> Any:
    """Return the number of the first place of a key, in a part of ``2 ** bits``."""
    spread = (key ^ salt) * np.uint64(SPREAD)
    spread ^= spread >> np.uint64(32)
    spread *= salt | np.uint64(1)
    # Once more: a product alone leaves keys that differ in their first bits in few places, where the salt is unlucky.
    spread ^= spread >> np.uint64(32)
    spread *= np.uint64(SPREAD)
    return np.int64(spread >> np.uint64(64 - bits))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _expect_place(addresses: Any, bits: Any, salt: Any, keys: Keys, i: int) -> None:
    """Prefetch the first place of key `i`, if there is one."""
    if i < keys.size:
        part = np.int64(keys[i] >> np.uint64(64 - BUCKET_BITS)) & (addresses.size - 1)
        _prefetch(addresses[part] + _PLACE * _first(keys[i], bits[part], salt))


@together
def _search(addresses: Any, bits: Any, salt: Any, keys: Keys, out: Slots) -> None:
    for i in range(keys.size):
        _expect_place(addresses, bits, salt, keys, i + AHEAD)
        key = keys[i]
        part = np.int64(key >> np.uint64(64 - BUCKET_BITS)) & (addresses.size - 1)
        base, at, last = addresses[part], _first(key, bits[part], salt), (1 << bits[part]) - 1
        found = _slot_at(base + _PLACE * at)
        while found >= 0 and _key_at(base + _PLACE * at) != key:
            at = (at + 1) & last
            found = _slot_at(base + _PLACE * at)
        out[i] = found


@_compiled(
    _READ_ADDRESSES, _READ_ADDRESSES, types.uint64, _READ_ADDRESSES, _READ_KEYS, _READ_ADDRESSES, _SLOTS
)
def find_all(addresses: Any, bits: Any, salt: Any, starts: Any, keys: Keys, ends: Any, out: Slots) -> None:
    for k in range(ends.size - 1):
        own, begin, end = slice(starts[k], starts[k + 1]), ends[k], ends[k + 1]
        _search(addresses[own], bits[own], salt, keys[begin:end], out[begin:end])


@_compiled(_READ_ADDRESSES, _READ_ADDRESSES, types.uint64, _READ_KEYS, _SLOTS)
def find(addresses: Any, bits: Any, salt: Any, keys: Keys, out: Slots) -> None:
    _search(addresses, bits, salt, keys, out)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _add(base: Any, bits: Any, salt: Any, key: Any, slot: Any) -> None:
    """Add a key to the part at `base`."""
    at, last = _first(key, bits, salt), (1 << bits) - 1
    while _slot_at(base + _PLACE * at) >= 0:
        at = (at + 1) & last
    _take_place(base + _PLACE * at, key, slot)


@_compiled(_READ_ADDRESSES, _READ_ADDRESSES, types.uint64, _READ_KEYS, _READ_SLOTS)
def insert(addresses: Any, bits: Any, salt: Any, keys: Keys, new: Slots) -> None:
    for i in range(keys.size):
        _expect_place(addresses, bits, salt, keys, i + AHEAD)
        part = np.int64(keys[i] >> np.uint64(64 - BUCKET_BITS)) & (addresses.size - 1)
        _add(addresses[part], bits[part], salt, keys[i], new[i])


@_compiled(types.int64, types.int64, types.int64, types.int64, types.uint64)
def move(part: int, places: int, larger: int, bits: int, salt: Any) -> None:
    for i in range(places):
        slot = _slot_at(part + _PLACE * i)
        if slot >= 0:
            _add(larger, bits, salt, _key_at(part + _PLACE * i), slot)


_PLACES = (_READ_ADDRESSES, types.int64, types.int64)


@_compiled(*_PLACES, types.int64, types.int64, _READ_SLOTS, types.int64)
def gather(addresses: Any, words: int, bits: int, first: int, width: int, slots: Slots, out: int) -> None:
    """`out`: an address, as are those of chunks."""
    mask = (1 << bits) - 1
    for i in range(slots.size):
        expect_row(addresses, words, bits, slots, i + AHEAD, first, width)
        slot = np.int64(slots[i])
        if slot >= 0:
            row = addresses[slot >> bits] + 4 * (slot & mask) * words
            copy_words(row + 4 * first, out + 4 * i * width, width)


@_compiled(*_PLACES, _READ_ADDRESSES, _READ_SLOTS, types.int64)
def gather_parts(addresses: Any, words: int, bits: int, ends: Any, slots: Slots, out: int) -> None:
    n, mask = slots.size, (1 << bits) - 1
    for i in range(n):
        expect_row(addresses, words, bits, slots, i + AHEAD, 0, words)
        slot = np.int64(slots[i])
        if slot >= 0:
            row = addresses[slot >> bits] + 4 * (slot & mask) * words
            start = 0
            for part in range(ends.size):
                width = ends[part] - start
                copy_words(row + 4 * start, out + 4 * (n * start + i * width), width)
                start = ends[part]


@_compiled(*_PLACES, _READ_ADDRESSES, _READ_SLOTS, types.int64, types.int64)
def scatter_parts(
    addresses: Any, words: int, bits: int, ends: Any, slots: Slots, values: int, rows: int
) -> None:
    n, mask = slots.size, (1 << bits) - 1
    for i in range(n):
        expect_row(addresses, words, bits, slots, i + AHEAD, 0, words)
        slot = np.int64(slots[i])
        row = addresses[slot >> bits] + 4 * (slot & mask) * words
        start = ends[0]
        copy_words(values + 4 * i * start, row, start)
        for part in range(1, ends.size):
            width = ends[part] - start
            copy_words(rows + 4 * (n * start + i * width), row + 4 * start, width)
            start = ends[part]


@_compiled(_READ_KEYS, _READ_KEYS, _KEYS, returns=types.int64)
def union(one: Keys, other: Keys, out: Keys) -> int:
    i, j, n = 0, 0, 0
    while i < one.size and j < other.size:
        a, b = one[i], other[j]
        out[n] = min(a, b)
        i += a <= b
        j += b <= a
        n += 1
    for k in range(i, one.size):
        out[n] = one[k]
        n += 1
    for k in range(j, other.size):
        out[n] = other[k]
        n += 1
    return n


@_compiled(_READ_KEYS, _READ_KEYS, _READ_ROWS, _ROWS)
def spread(keys: Keys, own: Keys, rows: Floats, out: Floats) -> None:
    at = 0
    for i in range(keys.size):
        if at < own.size and own[at] == keys[i]:
            for j in range(out.shape[1]):
                out[i, j] = rows[at, j]
            at += 1
        else:
            for j in range(out.shape[1]):
                out[i, j] = np.float32(0)
