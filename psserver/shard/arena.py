"""Published versions of a shard's variables, by number: immutable, counted by who needs them, then recycled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# Returns an uninitialised array with this number of elements.
Allocate = Callable[[int], Floats]


def plain(elements: int) -> Floats:
    return np.empty(elements, np.float32)


@dataclass(slots=True)
class Version:
    """A published version. `values` never changes while somebody needs it."""

    number: int
    values: Floats
    # Tickets that hold it, and reads under way.
    holds: int = 0
    readers: int = 0
    # Whether the buffer may be written again once nobody reads it.
    reusable: bool = True


class Arena:
    """At most `limit` buffers of `elements` float32 for the newest version, those that tickets hold (`Holds`), and the
    next one; more if `unlimited`.

    A superseded version that is only being read keeps its buffer until the read ends, and does not count.
    """

    def __init__(
        self, elements: int, limit: int, *, unlimited: bool = False, allocate: Allocate = plain
    ) -> None:
        if limit < 2:
            raise ValueError(f"arena versions is {limit}; expected at least 2 (one to read, one to write)")
        self.elements = elements
        self.limit = limit
        self._unlimited = unlimited
        self._allocate = allocate
        self._live: dict[int, Version] = {}
        # Superseded versions that are being read.
        self._read: list[Version] = []
        self._free: list[Floats] = []
        self._taken = 0
        self.newest = -1

    # Buffers

    @property
    def buffers(self) -> int:
        """The number of buffers now, without those of superseded versions that are only being read."""
        return len(self._live) + len(self._free) + self._taken

    @property
    def being_read(self) -> tuple[Version, ...]:
        """Superseded versions that keep their buffers until a read ends."""
        return tuple(self._read)

    @property
    def beyond(self) -> int:
        """The number of buffers beyond `limit`, with those of superseded versions that are only being read."""
        return max(0, self.buffers + len(self._read) - self.limit)

    @property
    def arrays(self) -> tuple[Floats, ...]:
        """The buffers of live versions, and free ones."""
        return (*(version.values for version in self._live.values()), *self._free)

    def can_take(self) -> bool:
        return bool(self._free) or self._unlimited or self.buffers < self.limit

    def take(self) -> Floats:
        """Take a buffer for the next version. Requires `can_take`."""
        assert self.can_take()
        values = self._free.pop() if self._free else self._allocate(self.elements)
        self._taken += 1
        return values

    def publish(self, values: Floats) -> int:
        """Make `values`, which came from `take`, the newest version. Return its number."""
        assert self._taken > 0
        self._taken -= 1
        previous = self._live.get(self.newest)
        self.newest += 1
        self._live[self.newest] = Version(self.newest, values)
        if previous is not None and not previous.holds:
            self._drop(previous)
        return self.newest

    # Versions

    def values(self, number: int) -> Floats | None:
        """Return a live version: the newest, or one that a ticket holds."""
        version = self._live.get(number)
        return None if version is None else version.values

    def hold(self, number: int) -> None:
        """Keep version `number`, which must be live, until as many calls of `release`."""
        assert number in self._live, f"hold of version {number}; live: {sorted(self._live)}"
        self._live[number].holds += 1

    def release(self, number: int) -> None:
        version = self._live[number]
        version.holds -= 1
        if not version.holds and number != self.newest:
            self._drop(version)

    def take_back(self, number: int) -> None:
        """Drop an old version although tickets hold it."""
        self._drop(self._live[number])

    def spoil(self, number: int) -> None:
        """Never write to the buffer of a live version again: somebody may read it in shared memory without a hold."""
        self._live[number].reusable = False

    def start_read(self, number: int) -> Version | None:
        """Start a read. Return None if the version is no longer live."""
        version = self._live.get(number)
        if version is not None:
            version.readers += 1
        return version

    def end_read(self, version: Version) -> None:
        version.readers -= 1
        # The list is short. Compare by identity, as the number of a version that was dropped may exist again.
        if not version.readers and any(each is version for each in self._read):
            self._read = [each for each in self._read if each is not version]
            self._recycle(version)

    def _drop(self, version: Version) -> None:
        del self._live[version.number]
        if version.readers:
            self._read.append(version)
        else:
            self._recycle(version)

    def _recycle(self, version: Version) -> None:
        if version.reusable and self.buffers < self.limit:
            self._free.append(version.values)

    # State

    def state(self) -> dict[int, Floats]:
        """Return the live versions by number, not copied."""
        return {number: version.values for number, version in self._live.items()}

    def restore(self, versions: Mapping[int, Floats]) -> None:
        """Restore what `state` returned, in a new arena; arrays are copied."""
        assert self.newest < 0
        for number, values in versions.items():
            own = self._allocate(self.elements)
            own[...] = values
            self._live[number] = Version(number, own)
        self.newest = max(versions, default=-1)
