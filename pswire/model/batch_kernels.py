"""The loops of `pswire.model.tables.uniques` and `sums`, compiled by numba. Imported by `compiled_batches` only."""

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from pswire.compiled import compiled

Keys = NDArray[np.uint64]
Ids = NDArray[np.int64]
Places = NDArray[np.int32]
Floats = NDArray[np.float32]


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _mix(bits: np.uint64) -> np.uint64:
    """Return the key of an id: `pswire.model.tables.mix`."""
    bits ^= bits >> np.uint64(33)
    bits *= np.uint64(0xFF51AFD7ED558CCD)
    bits ^= bits >> np.uint64(33)
    bits *= np.uint64(0xC4CEB9FE1A85EC53)
    bits ^= bits >> np.uint64(33)
    return bits


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _sort(keys: Keys, ranks: Places, scratch: Places) -> None:
    """Sort keys, and write the rank of each. `scratch`: more than twice as many places as keys.

    Keys are evenly spread, so their upper bits tell nearly where they belong.
    """
    bits = 1
    while 1 << bits < keys.size:
        bits += 1
    shift, ends = np.uint64(64 - bits), scratch[: 1 << bits]
    ends[:] = 0
    for i in range(keys.size):
        ends[np.int64(keys[i] >> shift)] += 1
    for j in range(1, ends.size):
        ends[j] += ends[j - 1]
    sorted_keys, order = np.empty_like(keys), np.empty_like(ranks)
    for i in range(keys.size - 1, -1, -1):
        of = np.int64(keys[i] >> shift)
        ends[of] -= 1
        sorted_keys[ends[of]] = keys[i]
        order[ends[of]] = i
    moves, most = 0, 64 + 16 * keys.size
    for i in range(1, keys.size):
        at = i
        key, number = sorted_keys[i], order[i]
        while at > 0 and sorted_keys[at - 1] > key:
            sorted_keys[at] = sorted_keys[at - 1]
            order[at] = order[at - 1]
            at -= 1
        sorted_keys[at] = key
        order[at] = number
        moves += i - at
        if moves > most:
            # Ids that somebody has chosen.
            found = np.argsort(keys)
            for rank in range(keys.size):
                order[rank] = found[rank]
                sorted_keys[rank] = keys[found[rank]]
            break
    for rank in range(keys.size):
        keys[rank] = sorted_keys[rank]
        ranks[order[rank]] = rank


@compiled(
    "void(Array(i8, 1, 'C', readonly=True), Array(i8, 1, 'C', readonly=True), i4[::1], u8[::1], i4[::1], i8[::1])"
)
def _unique(ids: Ids, ends: Ids, places: Places, keys: Keys, inverse: Places, counts: Ids) -> None:
    """Write the sorted unique keys of each part of `ids`, the place of each id among them, and their numbers.

    `ends`: the id behind each part. `keys`: written from where a part of `ids` begins. `places`: a power of two, more
    than twice as many as the ids of any part.
    """
    ranks, start = np.empty(keys.size, np.int32), 0
    for part in range(ends.size):
        stop, size = ends[part], 2
        while size <= 2 * (stop - start):
            size *= 2
        mask = np.uint64(size - 1)
        places[:size] = -1
        # Numbers in the order in which each key comes first.
        own, count = keys[start:stop], 0
        for i in range(start, stop):
            key = _mix(np.uint64(ids[i]))
            at = key & mask
            number = places[at]
            while number >= 0 and own[number] != key:
                at = (at + np.uint64(1)) & mask
                number = places[at]
            if number < 0:
                number = count
                places[at] = number
                own[number] = key
                count += 1
            inverse[i] = number
        counts[part] = count
        _sort(own[:count], ranks[:count], places)
        for i in range(start, stop):
            inverse[i] = ranks[inverse[i]]
        start = stop


@compiled("void(Array(i4, 1, 'C', readonly=True), Array(f4, 2, 'C', readonly=True), f4[:, ::1])")
def add(inverse: Places, gradients: Floats, total: Floats) -> None:
    """Add each gradient to its row, in the order of positions."""
    for i in range(inverse.size):
        row = inverse[i]
        for j in range(total.shape[1]):
            total[row, j] += gradients[i, j]


def uniques(several: Sequence[Ids]) -> list[tuple[Keys, Places]]:
    """Return the sorted unique keys of each array of ids, and of each id its position among them."""
    sizes = [each.size for each in several]
    ids = several[0] if len(several) == 1 else np.concatenate(several)
    ends, counts = np.cumsum(sizes), np.empty(len(sizes), np.int64)
    # Less than half full, so that probes are short.
    places = np.empty(2 << (2 * max(sizes)).bit_length(), np.int32)
    keys, inverse = np.empty(ids.size, np.uint64), np.empty(ids.size, np.int32)
    _unique(ids, ends, places, keys, inverse, counts)
    parts = zip(ends.tolist(), sizes, counts.tolist(), strict=True)
    return [(keys[end - size : end - size + count], inverse[end - size : end]) for end, size, count in parts]
