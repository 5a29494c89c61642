"""The kernels of tables in numpy: what the compiled ones are compared with."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from psserver.fast import rows as kernels
from psserver.fast.rows import (
    BUCKET_BITS,
    SPREAD,
    Floats,
    IndexPlaces,
    JoinedPlaces,
    Keys,
    RowMemory,
    Slots,
    Words,
    parts_of,
)

# Elements that stay in the cache from one ufunc to the next.
_BLOCK = 1 << 15


def find(places: IndexPlaces, keys: Keys, out: Slots) -> None:
    out[:] = -1
    for part, here in _by_part(places, keys):
        waiting, at = here, _first(part, keys[here])
        while waiting.size:
            found = _slots(part)[at]
            hit = (found >= 0) & (_keys(part[at]) == keys[waiting])
            out[waiting[hit]] = found[hit]
            on = (found >= 0) & ~hit
            waiting, at = waiting[on], (at[on] + 1) & (len(part) - 1)


def find_all(joined: JoinedPlaces, keys: Keys, ends: NDArray[np.int64], out: Slots) -> None:
    for places, start, stop in zip(joined.places, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        find(places, keys[start:stop], out[start:stop])


def insert(places: IndexPlaces, keys: Keys, new: Slots) -> None:
    for part, here in _by_part(places, keys):
        _insert(part, keys[here], new[here])


def move(part: Words, larger: Words) -> None:
    taken = part[_slots(part) >= 0]
    _insert(larger, _keys(taken), _slots(taken))


def _insert(part: Words, keys: Keys, new: Slots) -> None:
    waiting, at = np.arange(keys.size), _first(part, keys)
    while waiting.size:
        free = np.flatnonzero(_slots(part)[at] < 0)
        # Of several keys that want one place, the first gets it.
        taken, first = np.unique(at[free], return_index=True)
        winners = free[first]
        part[taken, :2] = keys[waiting[winners], None].view(np.uint32)
        _slots(part)[taken] = new[waiting[winners]]
        on = np.ones(waiting.size, bool)
        on[winners] = False
        waiting, at = waiting[on], (at[on] + 1) & (len(part) - 1)


def gather(memory: RowMemory, first: int, slots: Slots, out: Words) -> None:
    for chunk, here, rows in _by_chunk(memory, slots):
        out[here] = chunk[rows, first : first + out.shape[1]]


def gather_parts(memory: RowMemory, slots: Slots, out: Words) -> None:
    first = 0
    for part in parts_of(out, memory.ends):
        gather(memory, first, slots, part)
        first += part.shape[1]


def scatter_parts(memory: RowMemory, slots: Slots, values: Words, rows: Words) -> None:
    first = 0
    for part in (values, *parts_of(rows, memory.ends)[1:]):
        for chunk, here, at in _by_chunk(memory, slots):
            chunk[at, first : first + part.shape[1]] = part[here]
        first += part.shape[1]


def union(one: Keys, other: Keys) -> Keys:
    return np.union1d(one, other)


def spread(keys: Keys, own: Keys, rows: Floats, out: Floats) -> None:
    out[...] = 0
    out[np.searchsorted(keys, own)] = rows


def _by_chunk(
    memory: RowMemory, slots: Slots
) -> Iterator[tuple[Words, NDArray[np.int64], NDArray[np.int32]]]:
    """Yield chunks, the places in `slots` of those that lie in it, and their rows there."""
    number = slots >> memory.bits
    for k in np.unique(number[slots >= 0]):
        here = np.flatnonzero(number == k)
        yield memory.chunks[k], here, slots[here] & ((1 << memory.bits) - 1)


def _by_part(places: IndexPlaces, keys: Keys) -> Iterator[tuple[Words, NDArray[np.int64]]]:
    """Yield parts, and which of the keys belong to each."""
    if len(places.parts) == 1:
        yield places.parts[0], np.arange(keys.size)
        return
    number = (keys >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    for start, stop in pairwise([*starts.tolist(), keys.size]):
        yield places.parts[number[order[start]]], order[start:stop]


def _first(part: Words, keys: Keys) -> NDArray[np.int64]:
    bits = len(part).bit_length() - 1
    spread = (keys ^ kernels.SALT) * SPREAD
    spread ^= spread >> np.uint64(32)
    spread *= kernels.SALT | np.uint64(1)
    spread ^= spread >> np.uint64(32)
    spread *= SPREAD
    return (spread >> np.uint64(64 - bits)).astype(np.int64)


def _keys(places: Words) -> Keys:
    """Return the keys of [n, 3] words, copied."""
    found: Keys = np.ascontiguousarray(places[:, :2]).view(np.uint64)[:, 0]
    return found


def _slots(places: Words) -> Slots:
    """Return the slots of [n, 3] words, as a view."""
    return places[:, 2].view(np.int32)
