"""Memory that a server on this machine shares with this worker: slots to fill, versions to read in place."""

import threading
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pswire.transport import segments
from pswire.transport.segments import Place, SegmentError
from pswire.v1 import shard_pb2
from psworker.data.payloads import Floats, Pieces, Received
from psworker.errors import Voided


class Attachment:
    """The segments that one server lends. Raises SegmentError when one cannot be opened here.

    The holder of the server's `turn` owns it, except for the control word: the thread that has read a version writes it
    under `_guard`.
    """

    def __init__(self, attached: shard_pb2.Attached) -> None:
        self.arena_versions = attached.arena_versions
        self._guard = threading.Lock()
        # A plain memoryview: reading a numpy scalar takes five times as long.
        self._word = segments.words(segments.open_segment(_place(attached.control), writable=True)).data
        self._slots = [
            segments.floats(segments.open_segment(_place(slot), writable=True)) for slot in attached.slots
        ]
        self._versions: dict[bytes, Floats] = {}

    @classmethod
    def of(cls, attached: shard_pb2.Attached) -> Self:
        if attached.refusal:
            raise SegmentError(attached.refusal)
        return cls(attached)

    # Payloads out

    def slot(self) -> Floats | None:
        """Return an array to write the next payload into; None when the server lent none."""
        return self._slots[0] if self._slots else None

    def fill(self, values: NDArray[Any] | Pieces) -> int:
        """Put `values` into a slot, unless they are one already. Return its number, from 1; 0 without any slot."""
        for number, slot in enumerate(self._slots, 1):
            if slot is values:
                return number
        if not self._slots:
            return 0
        if isinstance(values, Pieces):
            values.write(self._slots[0])
        else:
            np.copyto(self._slots[0], values)
        return 1

    # Versions in

    def receive(self, located: shard_pb2.Located, ticket: int) -> Received:
        """Return the version in the located segment. Raises Voided when the segment is gone."""
        token = located.segment.token
        if token not in self._versions:
            live = set(located.live)
            self._versions = {t: values for t, values in self._versions.items() if t in live}
            try:
                memory = segments.open_segment(_place(located.segment), writable=False)
            except SegmentError as error:
                # A server takes no version back before the limit for reading it.
                raise Voided(f"the version of ticket {ticket} is gone: {error}") from error
            self._versions[token] = segments.floats(memory)
        return Received(self._versions[token], ticket, self)

    def mark_read(self, ticket: int) -> None:
        """Tell the server, by the control word, that the versions of tickets up to this one are read."""
        # The lock also orders this write behind the reads, on every processor.
        with self._guard:
            if ticket > self._word[0]:
                self._word[0] = ticket


def _place(segment: shard_pb2.Segment) -> Place:
    return Place(segment.pid, segment.fd, segment.token, segment.bytes)
