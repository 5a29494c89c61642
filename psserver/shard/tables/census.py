"""Facts about a table's rows without a pass over them: how often they are updated, which most, how stale.

Updates are noted as they come, and counted a few at a time: a job may have many small tables.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psserver.shard.tables.store import Counts
from pswire.model.table_figures import HOTTEST, LEVELS, TableFigures
from pswire.model.tables import Keys, TableSpec, unmix
from pswire.values import value

# Updates that are counted at once, unless they have more rows.
_SEVERAL: Final = 128
_ROWS: Final = 1 << 16
_MANY = _SMALL = 4096
# Rows of a checkpoint that are looked at together.
_PIECE: Final = 1 << 18
# Row staleness is measured at versions divisible by this: a prime, so that workers in turn all come to it.
SAMPLED: Final = 7


@value
class _Counts:
    """Rows by level, those with the most updates, and what is not counted yet: (updated or gone, keys, counts).

    Of these only `waiting` changes: it grows.
    """

    levels: NDArray[np.int64]
    hot: Mapping[int, int]
    waiting: list[tuple[bool, Keys, Counts]] = field(default_factory=list)


class Census:
    """The figures of one table on one server. Any thread may ask for `figures`; one other thread notes."""

    def __init__(self) -> None:
        # Replaced as a whole when what waits is counted, so that readers need no lock.
        self._counts = _Counts(np.zeros((LEVELS, 2), np.int64), {})
        # Rows that are not counted yet.
        self._pending = 0
        self._recent: deque[tuple[int, Keys]] = deque()
        self._versions = self._touched = self._newest = 0
        self._made = self._evicted = self._refused = self._read = self._behind = 0

    def note(self, version: int, keys: Keys, counts: Counts, made: int, refused: int) -> None:
        """Note that an update has changed rows, which have had `counts` updates now."""
        self._versions += 1
        self._newest = keys.size
        self._touched += keys.size
        self._made += made
        self._refused += refused
        if keys.size:
            self._recent.append((version, keys))
            self._wait(True, keys, counts)

    def gone(self, keys: Keys, counts: Counts) -> None:
        """Note that rows were evicted, which had had `counts` updates."""
        self._evicted += keys.size
        self._wait(False, keys, counts)

    def _wait(self, updated: bool, keys: Keys, counts: Counts) -> None:
        waiting = self._counts.waiting
        waiting.append((updated, keys, counts))
        self._pending += keys.size
        if len(waiting) >= _SEVERAL or self._pending >= _ROWS:
            self._counts, self._pending = _counted(self._counts), 0

    def took_up(self, keys: Keys, counts: Counts) -> None:
        """Note rows that a checkpoint had."""
        levels = self._counts.levels.copy()
        _add(levels, counts, 1)
        # In pieces: the first ones tell that few rows of the others can be among the hottest.
        hot: Mapping[int, int] = {}
        for start in range(0, keys.size, _PIECE):
            hot = _hottest(hot, keys[start : start + _PIECE], counts[start : start + _PIECE])
        self._counts = _Counts(levels, hot)

    def measure(self, keys: Keys, base: int) -> None:
        """Measure row staleness: gradients for these rows, read at version `base`, are in the coming update."""
        # Every 16th of many is sample enough.
        keys = keys[:: 16 if keys.size > _MANY else 1]
        self._read += keys.size
        for version, changed in reversed(self._recent):
            if version <= base:
                break
            at = np.minimum(np.searchsorted(changed, keys), changed.size - 1)
            self._behind += int(np.count_nonzero(changed[at] == keys))

    def forget(self, oldest: int) -> None:
        """Forget what only gradients read before version `oldest` need."""
        while self._recent and self._recent[0][0] <= oldest:
            self._recent.popleft()

    def figures(self, spec: TableSpec, rows: int, nbytes: int, places: int) -> TableFigures:
        """Return the figures, with those that the table itself knows."""
        now = _counted(self._counts)
        used = np.flatnonzero(now.levels[:, 0])
        levels = now.levels[: int(used[-1]) + 1 if used.size else 0].tolist()
        hot = sorted(now.hot.items(), key=_order)
        ids = unmix(np.array([key for key, _ in hot], np.uint64)).tolist()
        return TableFigures(
            *(spec.name, rows, nbytes, places, self._versions, self._touched, self._newest),
            *(self._made, self._evicted, self._refused, self._read, self._behind),
            levels=tuple((one, other) for one, other in levels),
            hot=tuple(zip(ids, [count for _, count in hot], strict=True)),
        )


def _counted(now: _Counts) -> _Counts:
    """Count what waits, in its order."""
    levels, hot, waiting = now.levels.copy(), now.hot, tuple(now.waiting)
    while waiting:
        stop = next((k for k, (updated, _, _) in enumerate(waiting) if not updated), len(waiting))
        if stop:
            keys, counts = (np.concatenate([each[k] for each in waiting[:stop]]) for k in (1, 2))
            _add_updates(levels, counts)
            hot = _hottest(hot, keys, counts)
        for _, keys, counts in waiting[stop : stop + 1]:
            _add(levels, counts, -1)
            left = hot.keys() - set(keys.tolist())
            hot = {key: hot[key] for key in left}
        waiting = waiting[stop + 1 :]
    return _Counts(levels, hot)


def _add_updates(levels: NDArray[np.int64], counts: Counts) -> None:
    """Add an update to each row of `counts` updates, this one among them."""
    number, rows = _tally(counts)
    level = _levels(number)
    np.add.at(levels[:, 1], level, rows)
    # Rows that have come to another level, with the updates that they had before.
    crossed = (number & (number - 1)) == 0
    here, number, rows = level[crossed], number[crossed], rows[crossed]
    np.add.at(levels[:, 0], here, rows)
    np.add.at(levels[:, 1], here, rows * (number - 1))
    old = number > 1
    np.subtract.at(levels[:, 0], here[old] - 1, rows[old])
    np.subtract.at(levels[:, 1], here[old] - 1, (rows * (number - 1))[old])


def _add(levels: NDArray[np.int64], counts: Counts, sign: int) -> None:
    """Add rows with so many updates, or take them away."""
    number, rows = _tally(counts)
    np.add.at(levels[:, 0], _levels(number), sign * rows)
    np.add.at(levels[:, 1], _levels(number), sign * rows * number)


def _tally(counts: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each different count, and how many rows have it. Nearly all are small."""
    large = counts >= _SMALL
    if not large.any():
        return _tally_small(counts)
    number, few = _tally_small(counts[~large])
    many, rows = np.unique(counts[large], return_counts=True)
    return np.concatenate([number, many.astype(np.int64)]), np.concatenate([few, rows])


def _tally_small(counts: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.bincount(counts)
    number = np.flatnonzero(rows)
    return number, rows[number]


def _hottest(hot: Mapping[int, int], keys: Keys, counts: Counts) -> dict[int, int]:
    """Return the rows with the most updates. `keys`: of updates in their order, with the numbers after each."""
    floor = min(hot.values()) if len(hot) >= HOTTEST else 0
    more = np.flatnonzero(counts >= floor)
    most = HOTTEST * (_SEVERAL + 1)
    if more.size > most:
        more = np.sort(more[np.argpartition(counts[more], more.size - most)[-most:]])
    # Numbers only rise, so the last one of a row is its largest.
    found = {**hot, **dict(zip(keys[more].tolist(), counts[more].tolist(), strict=True))}
    return dict(heapq.nsmallest(HOTTEST, found.items(), _order))


def _order(row: tuple[int, int]) -> tuple[int, int]:
    return -row[1], row[0]


def _levels(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(log2) of each count; a row that was never counted is in the first level."""
    levels: NDArray[np.int64] = np.maximum(np.frexp(counts.astype(np.float64))[1] - 1, 0).astype(np.int64)
    return levels
