"""The contents of a log's items. Large ones lie in buffers that are used again, which servers here can read.

A buffer begins with a number that is another one for each use, and 0 while it is being filled. Who copies out of
another server's buffer compares it before and after, so one that was used again meanwhile is never taken for what it
was.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psserver.replication.messages import Item
from psserver.service.store.shared_memory import Floats, Sharing
from pswire.transport import segments
from pswire.transport.segments import Place, SegmentError

Body = bytes | bytearray | memoryview

#: Bytes from which on a body lies in such a buffer; bytes of it before the body.
LARGE: Final = 1 << 16
HEAD: Final = 64
# Free buffers at most, and segments of other servers that stay mapped.
SPARE, MAPPED = 3, 8
# Sizes are rounded up, for bodies of one job differ by a few bytes.
_ROUND = 4096


class Lies(NamedTuple):
    """Where a body lies: in a segment of this process, during that use of it."""

    place: Place
    use: int


class Overwritten(Exception):
    """The buffer is used for something else by now."""


class Bodies:
    """The bodies of the log's items, by item. The loop's thread owns it.

    `sharing`: where buffers come from; None: every body is of its own. `nbytes`: of all bodies.
    """

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.nbytes = 0
        self._sharing = sharing
        self._bodies: dict[Item, Body] = {}
        # Buffers of bodies, by the bodies' ids, with the number of their use.
        self._buffers: dict[int, tuple[Floats, int]] = {}
        self._free: list[Floats] = []
        self._uses = 0
        self._mapped: dict[bytes, NDArray[np.uint8]] = {}
        self._probe: segments.Segment | None = None
        self._reads = True

    def __getitem__(self, item: Item) -> Body:
        return self._bodies[item]

    def holds(self, item: Item, body: Body) -> bool:
        """Return whether this is the item's body still, and its buffer no other one's."""
        return self._bodies.get(item) is body

    def hold(self, item: Item, body: Body) -> None:
        """Keep what an item consists of. A body that comes again is the same."""
        if item in self._bodies:
            self._give_back(body)
            return
        self._bodies[item] = body
        self.nbytes += len(body)

    def drop(self, item: Item) -> None:
        """Forget an item that all copies have executed."""
        body = self._bodies.pop(item, None)
        if body is not None:
            self.nbytes -= len(body)
            self._give_back(body)

    def make(self, parts: Sequence[Body]) -> Body:
        """Return the parts as one body."""
        nbytes = sum(map(len, parts))
        if self._sharing is None or nbytes < LARGE:
            return b"".join(parts)
        array, octets = self._begin(nbytes)
        at = 0
        for part in parts:
            octets[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        return self._end(array, octets)

    # Buffers

    def _begin(self, nbytes: int) -> tuple[Floats, NDArray[np.uint8]]:
        """Take a buffer; return it, and the part of it to fill."""
        assert self._sharing is not None
        elements = -(-(HEAD + nbytes) // _ROUND) * _ROUND // 4
        array = next((each for each in self._free if each.size == elements), None)
        if array is None:
            array = self._sharing.allocate(elements)
        else:
            self._free = [each for each in self._free if each is not array]
        array[:2].view(np.int64)[0] = 0
        return array, array.view(np.uint8)[HEAD : HEAD + nbytes]

    def _end(self, array: Floats, octets: NDArray[np.uint8]) -> Body:
        """Return the body with which a buffer was filled."""
        self._uses += 1
        array[:2].view(np.int64)[0] = self._uses
        body = octets.data
        self._buffers[id(body)] = array, self._uses
        return body

    def _give_back(self, body: Body) -> None:
        array, _ = self._buffers.pop(id(body), (None, 0))
        if array is not None:
            self._free = [*self._free, array][-SPARE:]

    # Other servers of this machine

    def lies(self, body: Body) -> Lies | None:
        """Return where a body lies, if others can read it there."""
        array, use = self._buffers.get(id(body), (None, 0))
        segment = None if array is None or self._sharing is None else self._sharing.segment(array)
        return None if segment is None else Lies(segment.place, use)

    def probe(self) -> Place | None:
        """Return a segment by which another server finds out whether it can read this one's; None without any."""
        if self._sharing is None or self._sharing.refusal is not None:
            return None
        try:
            self._probe = self._probe or segments.Segment(8, writable=False)
        except SegmentError:
            return None
        return self._probe.place

    def can_read(self, probe: Place) -> bool:
        """Return whether this server reads segments of the process that has made the probe."""
        try:
            segments.open_segment(probe, writable=False).close()
        except SegmentError:
            return False
        return self._reads and self._sharing is not None

    def read(self, lies: Lies, nbytes: int) -> Body:
        """Copy a body out of another server's buffer. Raises Overwritten, SegmentError."""
        if not 0 < nbytes <= lies.place.nbytes - HEAD:
            raise SegmentError(f"expected a body within {lies.place.nbytes} bytes, got {nbytes}")
        source = self._map(lies.place)
        use = source[:8].view(np.int64)
        array, octets = self._begin(nbytes)
        if use[0] == lies.use:
            octets[...] = source[HEAD : HEAD + nbytes]
        if use[0] != lies.use:
            raise Overwritten
        return self._end(array, octets)

    def _map(self, place: Place) -> NDArray[np.uint8]:
        found = self._mapped.get(place.token)
        if found is None or found.nbytes != place.nbytes:
            try:
                found = segments.floats(segments.open_segment(place, writable=False)).view(np.uint8)
            except SegmentError:
                self._reads = False
                raise
            self._mapped = dict([*self._mapped.items(), (place.token, found)][-MAPPED:])
        return found
