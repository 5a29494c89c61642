"""Memory shared with workers of the same machine: versions that they read, slots that they fill."""

import logging
import weakref
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from psserver.shard.arena import plain
from pswire.logs.events import event
from pswire.transport import segments
from pswire.transport.segments import Place, Segment, SegmentError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]
# Slots of a worker. One is enough: a push is copied before it is answered, and the next is written after that.
SLOTS = 1


class Sharing:
    """The server's shared segments, and which array lies in which. The loop's thread owns it.

    `transport`: "auto" continues without shared memory if the system gives none; "shared-memory" raises
    SegmentError then; "grpc" and "socket" never request any.
    """

    def __init__(self, transport: str) -> None:
        self._strict = transport == "shared-memory"
        # Why no memory is shared; None while it is.
        self.refusal: str | None = None
        # Places of the server's arrays in segments, by the arrays' ids: computing an address takes ten times as long.
        self._places: dict[int, Place] = {}
        if transport in ("grpc", "socket"):
            self.refusal = f"the server was started with --transport {transport}"
        elif not segments.here():
            self._do_without("this system does not say which kernel it is")
        else:
            # Fail now rather than when the first worker has attached.
            try:
                Segment(segments.HEADER, writable=False)
            except SegmentError as error:
                self._do_without(str(error))

    def allocate(self, elements: int) -> Floats:
        """Return an array in a segment of its own, or in ordinary memory if there are no segments."""
        if self.refusal is not None or elements == 0:
            return plain(elements)
        try:
            return self._array(Segment(4 * elements, writable=False))
        except SegmentError as error:
            self._do_without(str(error))
            return plain(elements)

    def _array(self, segment: Segment) -> Floats:
        values = segments.floats(segment.memory)
        self._places[id(values)] = segment.place
        weakref.finalize(values, self._places.pop, id(values)).atexit = False
        return values

    def _do_without(self, reason: str) -> None:
        if self._strict:
            raise SegmentError(f"--transport shared-memory: {reason}")
        self.refusal = reason
        fields = event("shared_memory_refused", reason=reason)
        log.warning("no memory is shared with workers: %s", reason, extra=fields)

    def place(self, values: Floats) -> Place | None:
        """Return where an array of `allocate` lies; None if in ordinary memory."""
        return self._places.get(id(values))

    def places(self, arrays: Iterable[Floats]) -> list[Place]:
        return [place for place in map(self.place, arrays) if place is not None]

    def lend(self, elements: int) -> "Attachment":
        """Make slots for a worker. Raises SegmentError."""
        return Attachment(elements)


class ControlWord:
    """A word in which one worker writes the last ticket whose version it has read. It may outlast the worker's
    slots."""

    def __init__(self) -> None:
        segment = Segment(8, writable=True)
        self.place = segment.place
        self._word = segments.words(segment.memory)

    def has_read(self, ticket: int) -> bool:
        """Return whether the worker has read the ticket's version. Its tickets come in rising order."""
        return int(self._word[0]) >= ticket


class Attachment:
    """Memory that one worker shares with this server while its exchange lasts. The loop's thread owns it.

    The server keeps the control word as long as the worker's tickets hold versions.
    """

    def __init__(self, elements: int) -> None:
        self.word = ControlWord()
        self._elements = elements
        slots = [Segment(4 * elements, writable=True) for _ in range(SLOTS)]
        self.places = (self.word.place, *(slot.place for slot in slots))
        self._slots = [segments.floats(slot.memory) for slot in slots]

    def fits(self, elements: int) -> bool:
        """Return whether the slots hold payloads of that many elements."""
        return self._elements == elements

    def holds(self, number: int) -> bool:
        return 1 <= number <= len(self._slots)

    def values(self, number: int) -> Floats:
        """Return slot `number`, from 1. Its worker may write into it at any time."""
        return self._slots[number - 1]

    def release(self) -> None:
        """Release the memory explicitly, because a broken call may keep its frames until the next collection."""
        del self.word, self._slots


def to_wire(place: Place) -> shard_pb2.Segment:
    return shard_pb2.Segment(pid=place.pid, fd=place.fd, token=place.token, bytes=place.nbytes)


def from_wire(segment: shard_pb2.Segment) -> Place:
    return Place(segment.pid, segment.fd, segment.token, segment.bytes)
