"""The search for the rows of several tables at once, which remembers what it has found.

A worker's gradients are for the rows that it has read: their places are known by then, unless rows have gone since.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from psserver.fast import rows as kernels
from psserver.fast.rows import IndexPlaces, JoinedPlaces, Keys, Slots
from pswire.model.adjacent import joined

# Searches that are remembered: a few workers read before one of them pushes.
_REMEMBERED = 4


class Searched(Protocol):
    """A table. `evictions`: how often rows have gone; until then a row stays where it is."""

    evictions: int

    @property
    def places(self) -> IndexPlaces: ...


class _Found(NamedTuple):
    tables: tuple[Searched, ...]
    evictions: tuple[int, ...]
    ends: list[int]
    keys: Keys
    slots: Slots


class Finder:
    """Finds rows of tables. Any thread may."""

    def __init__(self) -> None:
        # Replaced as a whole, as other threads may read them.
        self._joined: tuple[tuple[IndexPlaces, ...], JoinedPlaces] | None = None
        self._found: tuple[_Found, ...] = ()

    def find(self, tables: Sequence[Searched], keys: Sequence[Keys]) -> tuple[Slots, list[int]]:
        """Return the slots of the keys of each table one behind the other, -1 where there is no row; and their ends."""
        asked, ends = tuple(tables), np.cumsum([each.size for each in keys]).tolist()
        # Before the search: rows that go meanwhile make it worthless.
        evictions = tuple(table.evictions for table in asked)
        whole = joined(keys)
        for before in self._found:
            same = before.evictions == evictions and before.ends == ends
            if same and before.tables == asked and np.array_equal(before.keys, whole):
                slots = before.slots.copy()
                self._complete(asked, keys, ends, slots)
                return slots, ends
        slots = np.empty(whole.size, np.int32)
        kernels.find_all(self._places(asked), whole, np.array([0, *ends]), slots)
        self._found = (_Found(asked, evictions, ends, whole, slots.copy()), *self._found[: _REMEMBERED - 1])
        return slots, ends

    def _complete(
        self, tables: Sequence[Searched], keys: Sequence[Keys], ends: Sequence[int], slots: Slots
    ) -> None:
        """Search for rows that were not there before."""
        absent = np.flatnonzero(slots < 0)
        if not absent.size:
            return
        bounds = np.searchsorted(absent, [0, *ends]).tolist()
        wanted = [
            each[absent[begin:stop] - (end - each.size)]
            for each, end, begin, stop in zip(keys, ends, bounds, bounds[1:], strict=False)
        ]
        found = np.empty(absent.size, np.int32)
        kernels.find_all(self._places(tables), np.concatenate(wanted), np.array(bounds), found)
        slots[absent] = found

    def _places(self, tables: Sequence[Searched]) -> JoinedPlaces:
        places = tuple(table.places for table in tables)
        joined = self._joined
        if joined is None or len(joined[0]) != len(places) or any(map(_differ, joined[0], places)):
            joined = self._joined = places, JoinedPlaces.of(places)
        return joined[1]


def _differ(one: IndexPlaces, other: IndexPlaces) -> bool:
    return one is not other
