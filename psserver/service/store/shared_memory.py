"""Memory shared with workers of the same machine: versions that they read, a slot that each fills."""

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.shard.arena import plain
from pswire.logs.events import event
from pswire.transport import segments
from pswire.transport.segments import Place, Segment, SegmentError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]


class Sharing:
    """The server's shared segments, and which array lies in which. The loop's thread owns it.

    `transport`: "auto" continues without shared memory if the system gives none; "shared-memory" raises
    SegmentError then; "grpc" and "socket" never request any.
    """

    def __init__(self, transport: str) -> None:
        self._strict = transport == "shared-memory"
        # Why no memory is shared; None while it is.
        self.refusal: str | None = None
        # Segments of the server's arrays, by the arrays' ids: computing an address takes ten times as long.
        self._segments: dict[int, Segment] = {}
        if transport in ("grpc", "socket"):
            self.refusal = f"the server was started with --transport {transport}"
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
        self._segments[id(values)] = segment
        weakref.finalize(values, self._segments.pop, id(values)).atexit = False
        return values

    def _do_without(self, reason: str) -> None:
        if self._strict:
            raise SegmentError(f"--transport shared-memory: {reason}")
        self.refusal = reason
        fields = event("shared_memory_refused", reason=reason)
        log.warning("no memory is shared with workers: %s", reason, extra=fields)

    def segment(self, values: Floats) -> Segment | None:
        """Return the segment of an array of `allocate`; None if it lies in ordinary memory."""
        return self._segments.get(id(values))

    def segments(self, arrays: Iterable[Floats]) -> list[Segment]:
        return [segment for segment in map(self.segment, arrays) if segment is not None]


class ControlWord:
    """A word in which one worker writes the last ticket whose version it has read. It may outlast the worker's
    slot."""

    def __init__(self) -> None:
        self.segment = Segment(8, writable=True)
        self._word = segments.words(self.segment.memory)

    def has_read(self, ticket: int) -> bool:
        """Return whether the worker has read the ticket's version. Its tickets come in rising order."""
        return int(self._word[0]) >= ticket


class Attachment:
    """Memory that one worker shares with this server while its connection lasts. The loop's thread owns it.

    The server keeps the control word as long as the worker's tickets hold versions.
    """

    def __init__(self, elements: int, lend: Callable[[Sequence[Segment]], object]) -> None:
        """`elements`: of a payload. `lend`: hands segments over with the connection's next frame. Raises
        SegmentError."""
        self.word = ControlWord()
        self._lend = lend
        # One is enough: a push is copied before it is answered, and the worker writes the next one after that. It may
        # write at any time.
        slot = Segment(4 * elements, writable=True)
        self.slot = segments.floats(slot.memory)
        # Segments of versions that the worker has and may have mapped, by their numbers.
        self._known: set[int] = set()
        lend([self.word.segment, slot])

    def located(self, segment: Segment, live: Iterable[Segment]) -> shard_pb2.Located:
        """Return where a version lies, and hand its segment over if the worker has it not. `live`: all segments in
        which versions may lie."""
        numbers = [each.number for each in live]
        if segment.number not in self._known:
            self._lend([segment])
        self._known = (self._known | {segment.number}) & set(numbers)
        return shard_pb2.Located(segment=segment.number, bytes=segment.place.nbytes, live=numbers)

    def fits(self, elements: int) -> bool:
        """Return whether the slot holds payloads of that many elements."""
        return self.slot.size == elements

    def release(self) -> None:
        """Release the memory explicitly, because a broken call may keep its frames until the next collection."""
        del self.word, self.slot, self._lend


def to_wire(place: Place) -> shard_pb2.Segment:
    return shard_pb2.Segment(pid=place.pid, fd=place.fd, token=place.token, bytes=place.nbytes)


def from_wire(segment: shard_pb2.Segment) -> Place:
    return Place(segment.pid, segment.fd, segment.token, segment.bytes)
