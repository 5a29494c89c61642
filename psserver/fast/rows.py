"""Kernels of sparse tables: search and growth of an index, and rows to and from their places.

Their loops are in `psserver.fast.row_kernels`, which is compiled when the first kernel is called. Rows are arrays of
32-bit words, [n, words], whatever they mean.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire import salt

# Places beyond which an index should have a part for each bucket.
SINGLE: Final = 1 << 18
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


class RowMemory(NamedTuple):
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


class IndexPlaces(NamedTuple):
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


class KeptRows(NamedTuple):
    """The values of rows as they were, [n, dim], for readers.

    `filled`: how many are saved so far. A row is saved, and `filled` says so, before it changes.
    """

    values: Floats
    filled: NDArray[np.int64]


class RowUpdate(Protocol):
    """Updates rows where they lie; bit-equal to `psserver.optimizers.rows.RowOptimizer.step` on copies of them."""

    def __call__(
        self, memory: RowMemory, slots: Slots, g: Floats, saved: KeptRows, version: int, numbers: PassNumbers
    ) -> NDArray[np.uint32] | None:
        """Update the rows of different slots to `version`: values, slots and ages. `g` is [n, dim].

        Return how many elements of each row kept their old values because a number would not be finite; None if none
        did.
        """


class JoinedPlaces(NamedTuple):
    """The places of several indexes: addresses and sizes of all parts, those of index k from ``starts[k]`` on."""

    places: tuple[IndexPlaces, ...]
    addresses: NDArray[np.int64]
    bits: NDArray[np.int64]
    starts: NDArray[np.int64]

    @staticmethod
    def of(places: Sequence[IndexPlaces]) -> "JoinedPlaces":
        starts = np.cumsum([0, *(each.bits.size for each in places)])
        addresses = np.concatenate([each.addresses for each in places])
        return JoinedPlaces(tuple(places), addresses, np.concatenate([each.bits for each in places]), starts)


@cache
def compiled() -> Any:
    """Compile the kernels, or load what an earlier process compiled."""
    return import_module("psserver.fast.row_kernels")


def find(places: IndexPlaces, keys: Keys, out: Slots) -> None:
    """Write the slot of each key, -1 where there is none."""
    compiled().find(places.addresses, places.bits, SALT, keys, out)


def find_all(joined: JoinedPlaces, keys: Keys, ends: NDArray[np.int64], out: Slots) -> None:
    """Find keys in several indexes, as `find` does in one: keys ``ends[k]`` to ``ends[k + 1]`` belong to index k."""
    compiled().find_all(joined.addresses, joined.bits, SALT, joined.starts, keys, ends, out)


def insert(places: IndexPlaces, keys: Keys, new: Slots) -> None:
    """Add keys, each once and none of them there, with their slots. There must be room.

    A reader in another thread looks at a slot before its key, so the key is written first.
    """
    compiled().insert(places.addresses, places.bits, SALT, keys, new)


def move(part: Words, larger: Words) -> None:
    """Add the keys of a part to an empty one."""
    bits = len(larger).bit_length() - 1
    compiled().move(part.ctypes.data, len(part), larger.ctypes.data, bits, SALT)


def gather(memory: RowMemory, first: int, slots: Slots, out: Words) -> None:
    """Copy words of each row, from word `first`, as many as `out` has; for negative slots leave `out` alone."""
    width, at = out.shape[1], out.ctypes.data
    compiled().gather(memory.addresses, memory.words, memory.bits, first, width, slots, at)


def gather_parts(memory: RowMemory, slots: Slots, out: Words) -> None:
    """Copy whole rows to a flat array of parts (`parts_of`); for negative slots leave `out` alone."""
    ends = np.array(memory.ends)
    compiled().gather_parts(memory.addresses, memory.words, memory.bits, ends, slots, out.ctypes.data)


def scatter_parts(memory: RowMemory, slots: Slots, values: Words, rows: Words) -> None:
    """Write rows at different slots: the first part from `values`, [n, words], the others from a flat array."""
    ends, at = np.array(memory.ends), values.ctypes.data
    compiled().scatter_parts(memory.addresses, memory.words, memory.bits, ends, slots, at, rows.ctypes.data)


def union(one: Keys, other: Keys) -> Keys:
    """Return the keys of two arrays; all sorted and unique."""
    out = np.empty(one.size + other.size, np.uint64)
    return out[: compiled().union(one, other, out)]


def spread(keys: Keys, own: Keys, rows: Floats, out: Floats) -> None:
    """Write to `out` the row of each of `keys`, zeros for those that `own`, a part of them, lacks. All sorted."""
    compiled().spread(keys, own, rows, out)
