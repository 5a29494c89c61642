"""Kernels of sparse tables: search and growth of an index, and rows to and from their places.

Each exists twice, in numpy here and compiled in `psserver.fast.row_kernels`; both give the same result. Rows are arrays
of 32-bit words, [n, words], whatever they mean.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire import salt

# Elements that stay in the cache from one ufunc to the next.
_BLOCK = 1 << 15
# The upper bits of a key, which tell its bucket.
BUCKET_BITS = 12
# Hashing of keys has a secret of this process, so that nobody can choose ids that all want the same places. Where a key
# lies decides nothing else: results, files and orders do not depend on it.
SALT = np.uint64(salt.SALT)
# Spreads bits upwards; any odd number with bits all over does.
SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
Keys = NDArray[np.uint64]
Slots = NDArray[np.int32]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]


class Memory(NamedTuple):
    """Rows by slot, in chunks of ``2 ** bits`` rows each, [rows, words]; and the address of each chunk.

    A row has parts. `ends`: the word behind each part. n rows on their own are one array for each part, [n, words of
    the part], one behind the other (`parts_of`).
    """

    chunks: tuple[Words, ...]
    addresses: NDArray[np.int64]
    ends: tuple[int, ...]
    bits: int

    @property
    def words(self) -> int:
        return self.ends[-1]


def parts_of(rows: Words, ends: Sequence[int]) -> list[Words]:
    """Return the parts of n rows, [n, words] each, as views of the flat array that has them one behind the other."""
    n = rows.size // ends[-1]
    starts = (0, *ends)
    return [rows[n * a : n * b].reshape(n, b - a) for a, b in pairwise(starts)]


class Places(NamedTuple):
    """The places of an index: one part for all keys, or one for each bucket; and address and size of each part.

    A part is an array of ``2 ** bits`` places, [places, 3]: two words of a key, and its slot, all ones where there is
    none. A hash of the key with `SALT` gives its first place.
    """

    parts: tuple[Words, ...]
    addresses: NDArray[np.int64]
    bits: NDArray[np.int64]


class PassNumbers(NamedTuple):
    """The numbers of one update. The gradient is ``g * factor * scale``.

    `scalars`: those of the rule. `tiny`: slots closer to zero are cleared; 0 clears none. `roots`, `rests`: of a scalar
    that each row has of its own: it is ``scalar * roots[t] / rests[t]`` at update number t (from 1) of the row, as at
    the last entry for all after it.
    """

    scalars: Floats
    factor: np.float32
    scale: np.float32
    tiny: np.float32
    roots: Floats
    rests: Floats


class Saved(NamedTuple):
    """Rows as they were, for readers and to go back: values, [n, dim]; and all other words, [n, words].

    `filled`: how many are saved so far. A row is saved, and `filled` says so, before it changes.
    """

    values: Floats
    others: Words
    filled: NDArray[np.int64]


class RowUpdate(Protocol):
    """Updates rows where they lie; bit-equal to `psserver.optimizers.rows.RowOptimizer.step` on copies of them."""

    def __call__(
        self, memory: Memory, slots: Slots, g: Floats, saved: Saved, version: int, numbers: PassNumbers
    ) -> tuple[bool, NDArray[np.uint32]]:
        """Update the rows of different slots to `version`: values, slots and ages. `g` is [n, dim].

        Return whether all numbers are finite, and how many updates each row has had now.
        """


class JoinedPlaces(NamedTuple):
    """The places of several indexes: addresses and sizes of all parts, those of index k from ``starts[k]`` on."""

    places: tuple[Places, ...]
    addresses: NDArray[np.int64]
    bits: NDArray[np.int64]
    starts: NDArray[np.int64]

    @staticmethod
    def of(places: Sequence[Places]) -> "JoinedPlaces":
        starts = np.cumsum([0, *(each.bits.size for each in places)])
        addresses = np.concatenate([each.addresses for each in places])
        return JoinedPlaces(tuple(places), addresses, np.concatenate([each.bits for each in places]), starts)


class RowKernels(Protocol):
    """The kernels. `single`: the places beyond which an index should have a part for each bucket."""

    @property
    def single(self) -> int: ...

    def find(self, places: Places, keys: Keys, out: Slots) -> None:
        """Write the slot of each key, -1 where there is none."""

    def find_all(self, joined: JoinedPlaces, keys: Keys, ends: NDArray[np.int64], out: Slots) -> None:
        """Find keys in several indexes, as `find` does in one: keys ``ends[k]`` to ``ends[k + 1]`` belong to index
        k."""

    def insert(self, places: Places, keys: Keys, new: Slots) -> None:
        """Add keys, each once and none of them there, with their slots. There must be room.

        A reader in another thread looks at a slot before its key, so the key is written first.
        """

    def move(self, part: Words, larger: Words) -> None:
        """Add the keys of a part to an empty one."""

    def gather(self, memory: Memory, first: int, slots: Slots, out: Words) -> None:
        """Copy words of each row, from word `first`, as many as `out` has; for negative slots leave `out` alone."""

    def gather_parts(self, memory: Memory, slots: Slots, out: Words) -> None:
        """Copy whole rows to a flat array of parts (`parts_of`); for negative slots leave `out` alone."""

    def scatter_parts(self, memory: Memory, slots: Slots, values: Words, rows: Words) -> None:
        """Write rows at different slots: the first part from `values`, [n, words], the others from a flat array."""

    def scatter(self, memory: Memory, first: int, slots: Slots, values: Words) -> None:
        """Write words of rows at different slots, from word `first`."""

    def union(self, one: Keys, other: Keys) -> Keys:
        """Return the keys of two arrays; all sorted and unique."""

    def spread(self, keys: Keys, own: Keys, rows: Floats, out: Floats) -> None:
        """Write to `out` the row of each of `keys`, zeros for those that `own`, a part of them, lacks. All sorted."""

    def largest(self, values: Floats) -> float:
        """Return the largest magnitude; NaN or infinite if any number is; 0 for an empty array."""

    def rowwise_adagrad(
        self, x: Floats, g: Floats, a: Floats, rate: np.float32, epsilon: np.float32, out: Floats
    ) -> None:
        """Write new rows: see `psserver.optimizers.rows.RowwiseAdagrad`. `a` is [n], and advances."""


class NumpyRowKernels:
    """The kernels in numpy.

    They take a fifth of a millisecond for each part that they go to. So an index is divided late: it would take each
    update seconds, and compiled kernels are ready soon.
    """

    single: Final = 1 << 23

    def find(self, places: Places, keys: Keys, out: Slots) -> None:
        out[:] = -1
        for part, here in _by_part(places, keys):
            waiting, at = here, _first(part, keys[here])
            while waiting.size:
                found = _slots(part)[at]
                hit = (found >= 0) & (_keys(part[at]) == keys[waiting])
                out[waiting[hit]] = found[hit]
                on = (found >= 0) & ~hit
                waiting, at = waiting[on], (at[on] + 1) & (len(part) - 1)

    def find_all(self, joined: JoinedPlaces, keys: Keys, ends: NDArray[np.int64], out: Slots) -> None:
        for places, start, stop in zip(joined.places, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            self.find(places, keys[start:stop], out[start:stop])

    def insert(self, places: Places, keys: Keys, new: Slots) -> None:
        for part, here in _by_part(places, keys):
            self._insert(part, keys[here], new[here])

    def move(self, part: Words, larger: Words) -> None:
        taken = part[_slots(part) >= 0]
        self._insert(larger, _keys(taken), _slots(taken))

    def _insert(self, part: Words, keys: Keys, new: Slots) -> None:
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

    def gather(self, memory: Memory, first: int, slots: Slots, out: Words) -> None:
        for chunk, here, rows in _by_chunk(memory, slots):
            out[here] = chunk[rows, first : first + out.shape[1]]

    def gather_parts(self, memory: Memory, slots: Slots, out: Words) -> None:
        first = 0
        for part in parts_of(out, memory.ends):
            self.gather(memory, first, slots, part)
            first += part.shape[1]

    def scatter_parts(self, memory: Memory, slots: Slots, values: Words, rows: Words) -> None:
        first = 0
        for part in (values, *parts_of(rows, memory.ends)[1:]):
            for chunk, here, at in _by_chunk(memory, slots):
                chunk[at, first : first + part.shape[1]] = part[here]
            first += part.shape[1]

    def scatter(self, memory: Memory, first: int, slots: Slots, values: Words) -> None:
        for chunk, here, rows in _by_chunk(memory, slots):
            chunk[rows, first : first + values.shape[1]] = values[here]

    def union(self, one: Keys, other: Keys) -> Keys:
        return np.union1d(one, other)

    def spread(self, keys: Keys, own: Keys, rows: Floats, out: Floats) -> None:
        out[...] = 0
        out[np.searchsorted(keys, own)] = rows

    def largest(self, values: Floats) -> float:
        parts = range(0, values.size, _BLOCK)
        found = [np.max(np.abs(values[start : start + _BLOCK])) for start in parts]
        return float(np.max(found)) if found else 0.0

    def rowwise_adagrad(
        self, x: Floats, g: Floats, a: Floats, rate: np.float32, epsilon: np.float32, out: Floats
    ) -> None:
        with np.errstate(all="ignore"):
            a += sum_of_squares(g) / np.float32(g.shape[1])
            share = rate / (np.sqrt(a) + epsilon)
            np.subtract(x, g * share[:, None], out=out)


def sum_of_squares(rows: Floats) -> Floats:
    """Return the sum of squares of each row, columns added from left to right."""
    total: Floats = np.square(rows[:, 0])
    for column in range(1, rows.shape[1]):
        total += np.square(rows[:, column])
    return total


def _by_chunk(memory: Memory, slots: Slots) -> Iterator[tuple[Words, NDArray[np.int64], NDArray[np.int32]]]:
    """Yield chunks, the places in `slots` of those that lie in it, and their rows there."""
    number = slots >> memory.bits
    for k in np.unique(number[slots >= 0]):
        here = np.flatnonzero(number == k)
        yield memory.chunks[k], here, slots[here] & ((1 << memory.bits) - 1)


def _by_part(places: Places, keys: Keys) -> Iterator[tuple[Words, NDArray[np.int64]]]:
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
    spread = (keys ^ SALT) * SPREAD
    spread ^= spread >> np.uint64(32)
    spread *= SALT | np.uint64(1)
    return (spread >> np.uint64(64 - bits)).astype(np.int64)


def _keys(places: Words) -> Keys:
    """Return the keys of [n, 3] words, copied."""
    found: Keys = np.ascontiguousarray(places[:, :2]).view(np.uint64)[:, 0]
    return found


def _slots(places: Words) -> Slots:
    """Return the slots of [n, 3] words, as a view."""
    return places[:, 2].view(np.int32)


NUMPY_ROWS = NumpyRowKernels()
