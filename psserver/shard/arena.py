"""Published versions of a shard's variables: immutable, pinned by readers, then recycled."""

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
    """A published version. `values` never changes while the version lives."""

    number: int
    values: Floats
    # Reads in progress.
    readers: int = 0
    # A reader in shared memory may still read the buffer, so it must never be written again.
    left: bool = False
    # Who started the last read.
    reader: str = ""


class Arena:
    """At most `limit` buffers of `elements` float32, or more if bases must be kept.

    Invariant: every buffer is the newest version, an older one that a reader may still need, free, or taken for the
    version being made.
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
        self._free: list[Floats] = []
        self._taken = 0
        # Ticket -> version. A pin ends with the ticket's pull, a base with the ticket.
        self._pins: dict[int, int] = {}
        self._bases: dict[int, int] = {}
        # Tickets that read their version in place, in shared memory: their pins last until the worker releases them.
        self._in_place: set[int] = set()
        # Evicted versions with reads in progress. Their buffers do not count towards `limit`.
        self._lent: list[Version] = []
        self.newest = -1

    # Buffers

    @property
    def buffers(self) -> int:
        """The number of buffers now."""
        return len(self._live) + len(self._free) + self._taken

    @property
    def lent(self) -> tuple[Version, ...]:
        """Versions that were evicted during a read, and keep their buffers until it ends."""
        return tuple(self._lent)

    @property
    def beyond(self) -> int:
        """The number of buffers beyond `limit`: for bases that must be kept, and lent ones."""
        return max(0, self.buffers - self.limit) + len(self._lent)

    def holders_beyond(self) -> list[int]:
        """Return, for each buffer beyond `limit` that a base keeps, the oldest ticket that needs it."""
        first: dict[int, int] = {}
        for ticket, number in self._bases.items():
            if number != self.newest:
                first[number] = min(ticket, first.get(number, ticket))
        return sorted(first.values())[: max(0, self.buffers - self.limit)]

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
        previous = self.newest
        self.newest += 1
        self._live[self.newest] = Version(self.newest, values)
        self._recycle(previous)
        return self.newest

    # Readers

    def values(self, number: int) -> Floats | None:
        version = self._live.get(number)
        return None if version is None else version.values

    def pin(self, ticket: int, number: int, *, keep_base: bool) -> None:
        """Keep version `number`, which must be live, until the ticket has read it."""
        assert number in self._live, f"pin of version {number}; live: {sorted(self._live)}"
        self._pins[ticket] = number
        if keep_base:
            self._bases[ticket] = number

    def base_of(self, ticket: int) -> Floats:
        return self._live[self._bases[ticket]].values

    def unpin(self, ticket: int) -> None:
        """End the ticket's pin: it has read, or lost its lease. Unknown tickets are ignored."""
        number = self._pins.pop(ticket, None)
        self._in_place.discard(ticket)
        if number is not None:
            self._recycle(number)

    def forget(self, ticket: int) -> None:
        """Remove the pin and the base of a ticket that is over."""
        self.unpin(ticket)
        base = self._bases.pop(ticket, None)
        if base is not None:
            self._recycle(base)

    def pinned(self, ticket: int, number: int) -> bool:
        """Return True if the ticket has pinned that version and not read it yet."""
        return self._pins.get(ticket) == number

    def start_read(self, number: int, reader: str = "") -> Version | None:
        """Start a read. Return None if the version no longer exists (its lease expired, or it is too old)."""
        version = self._live.get(number)
        if version is not None:
            version.readers, version.reader = version.readers + 1, reader
        return version

    def end_read(self, version: Version) -> None:
        version.readers -= 1
        if self._live.get(version.number) is version:
            self._recycle(version.number)
        elif not version.readers:
            # The list is short. Compare by identity, as an evicted number may exist again.
            self._lent = [other for other in self._lent if other is not version]

    def read_in_place(self, ticket: int, number: int) -> Version | None:
        """Return the version that the ticket has pinned, to be read until `unpin`; None without that pin."""
        if not self.pinned(ticket, number):
            return None
        self._in_place.add(ticket)
        return self._live[number]

    @property
    def in_place(self) -> tuple[int, ...]:
        """The tickets that may be reading in place."""
        return tuple(self._in_place)

    @property
    def arrays(self) -> tuple[Floats, ...]:
        """The buffers of all versions, and free ones."""
        return (*(version.values for version in self._live.values()), *self._free)

    def holders(self) -> tuple[int, ...]:
        """Return the tickets whose unread pins keep old versions alive."""
        return tuple(t for t, number in self._pins.items() if number != self.newest)

    def evict(self) -> None:
        """Evict old versions whose leases have expired.

        A read in progress, in place or not, loses its version too. It keeps the buffer, which is replaced, so that no
        reader ever sees a version change.
        """
        for ticket in self.holders():
            number = self._pins.pop(ticket)
            if ticket in self._in_place:
                self._in_place.discard(ticket)
                self._live[number].left = True
        for number in [n for n in self._live if n != self.newest and n not in self._bases.values()]:
            version = self._live.pop(number)
            if version.readers:
                self._lent.append(version)
            elif not version.left:
                self._free.append(version.values)

    def evict_unpinned(self) -> None:
        """Evict old versions without pins: their readers delay no update."""
        kept = {self.newest, *self._pins.values(), *self._bases.values()}
        for number in [n for n in self._live if n not in kept]:
            version = self._live.pop(number)
            if version.readers:
                self._lent.append(version)

    # State

    def state(self) -> tuple[dict[int, Floats], dict[int, int], dict[int, int]]:
        """Return the versions that must be kept, by number (not copied), and the pins and bases of tickets.

        Versions held only by a read in progress are left out.
        """
        kept = {self.newest, *self._pins.values(), *self._bases.values()}
        live = {number: version.values for number, version in self._live.items() if number in kept}
        return live, dict(self._pins), dict(self._bases)

    def restore(
        self, versions: Mapping[int, Floats], pins: Mapping[int, int], bases: Mapping[int, int]
    ) -> None:
        """Restore what `state` returned, in a new arena; arrays are copied. All pinned versions must be there."""
        assert self.newest < 0 and {*pins.values(), *bases.values()} <= versions.keys()
        for number, values in versions.items():
            own = self._allocate(self.elements)
            own[...] = values
            self._live[number] = Version(number, own)
        self.newest = max(versions, default=-1)
        self._pins, self._bases = dict(pins), dict(bases)

    def _recycle(self, number: int) -> None:
        version = self._live.get(number)
        if version is None or number == self.newest or version.readers:
            return
        if number in self._pins.values() or number in self._bases.values():
            return
        del self._live[number]
        if len(self._live) + len(self._free) + self._taken < self.limit and not version.left:
            self._free.append(version.values)
