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


# Of a worker: a push is copied before it is answered, and the next one is written after that.
SLOTS = 1


class Sharing:
    """Makes segments and knows which array lies in which. The loop's thread owns it.

    `transport`: "auto" goes on without shared memory when the system gives
    none, "shared-memory" raises SegmentError then, "grpc" and "socket" never ask for any.
    """

    def __init__(self, transport: str) -> None:
        self._strict = transport == "shared-memory"
        # Why no memory is shared; None while it is.
        self.refusal: str | None = None
        # The server's arrays in segments, by their addresses.
        self._places: dict[int, Place] = {}
        if transport in ("grpc", "socket"):
            self.refusal = f"the server was started with --transport {transport}"
        elif not segments.here():
            self._do_without("this system does not say which kernel it is")
        else:
            # Better now than when the first worker has attached.
            try:
                Segment(segments.HEADER, writable=False)
            except SegmentError as error:
                self._do_without(str(error))

    def allocate(self, elements: int) -> Floats:
        """An array in a segment of its own; ordinary memory when there are none."""
        if self.refusal is not None or elements == 0:
            return plain(elements)
        try:
            return self._array(Segment(4 * elements, writable=False))
        except SegmentError as error:
            self._do_without(str(error))
            return plain(elements)

    def _array(self, segment: Segment) -> Floats:
        values = segments.floats(segment.memory)
        address = _address(values)
        self._places[address] = segment.place
        weakref.finalize(segment.memory, self._places.pop, address, None).atexit = False
        return values

    def _do_without(self, reason: str) -> None:
        if self._strict:
            raise SegmentError(f"--transport shared-memory: {reason}")
        self.refusal = reason
        fields = event("shared_memory_refused", reason=reason)
        log.warning("no memory is shared with workers: %s", reason, extra=fields)

    def place(self, values: Floats) -> Place | None:
        """Where an array of `allocate` lies; None if in ordinary memory."""
        return self._places.get(_address(values))

    def places(self, arrays: Iterable[Floats]) -> list[Place]:
        return [place for place in map(self.place, arrays) if place is not None]

    def lend(self, elements: int) -> "Attachment":
        """Slots for a worker. Raises SegmentError."""
        return Attachment(elements)


class ControlWord:
    """The last ticket whose version one worker has read. It writes it; the few bytes may outlast its slot."""

    def __init__(self) -> None:
        segment = Segment(8, writable=True)
        self.place = segment.place
        self._word = segments.words(segment.memory)

    def has_read(self, ticket: int) -> bool:
        """The worker no longer reads the ticket's version, by its own word. Its tickets come in rising order."""
        return int(self._word[0]) >= ticket


class Attachment:
    """What one worker shares with this server, for as long as its exchange lasts. The loop's thread owns it.

    The server keeps what it still needs of it: the control word until the pins of the worker's tickets end.
    """

    def __init__(self, elements: int) -> None:
        self.word = ControlWord()
        self._elements = elements
        slots = [Segment(4 * elements, writable=True) for _ in range(SLOTS)]
        self.places = (self.word.place, *(slot.place for slot in slots))
        self._slots = [segments.floats(slot.memory) for slot in slots]

    def fits(self, elements: int) -> bool:
        """The slots hold payloads of so many elements."""
        return self._elements == elements

    def holds(self, number: int) -> bool:
        return 1 <= number <= len(self._slots)

    def values(self, number: int) -> Floats:
        """Slot `number`, from 1, which its worker may write into at any time."""
        return self._slots[number - 1]

    def release(self) -> None:
        """The exchange is over. Explicitly, because a broken call may keep its frames until the next collection."""
        del self.word, self._slots


def to_wire(place: Place) -> shard_pb2.Segment:
    return shard_pb2.Segment(pid=place.pid, fd=place.fd, token=place.token, bytes=place.nbytes)


def _address(values: Floats) -> int:
    # A tenth of the time of `values.ctypes.data`, and it is asked for with every grant.
    return int(values.__array_interface__["data"][0])
