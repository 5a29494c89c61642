"""Memory that a server on this machine shares with this worker: a slot to fill, versions to read in place."""

import mmap
import threading
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire.transport import segments
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import FramedSocket
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2
from psworker.data.payloads import Floats, Pieces, Received
from psworker.errors import SessionError


class Attachment:
    """The segments that one server lends on a connection.

    The holder of the server's `turn` owns it, except for the control word: the thread that has read a version writes it
    under `_guard`.
    """

    def __init__(self, attached: shard_pb2.Attached, connection: FramedSocket) -> None:
        """Take what came with the frame `attached`. Raises SegmentError, also for a refusal, and SocketError."""
        if attached.refusal:
            raise SegmentError(attached.refusal)
        self.arena_versions = attached.arena_versions
        self._guard = threading.Lock()
        self._connection = connection
        # A plain memoryview: reading a numpy scalar takes five times as long.
        self._word = segments.words(self._next(8, writable=True)).data
        # For the next payload.
        self.slot = segments.floats(self._next(attached.slot_bytes, writable=True))
        self._versions: dict[int, Floats] = {}

    def _next(self, nbytes: int, *, writable: bool) -> mmap.mmap:
        (descriptor,) = self._connection.descriptors(1)
        return segments.map_descriptor(descriptor, nbytes, writable=writable)

    # Payloads out

    def fill(self, values: NDArray[Any] | Pieces) -> None:
        """Put `values` into the slot."""
        if isinstance(values, Pieces):
            values.write(self.slot)
        else:
            np.copyto(self.slot, values)

    # Versions in

    def receive(self, located: shard_pb2.Located, ticket: int) -> Received:
        """Return the version in the located segment. Raises SessionError for one that was not handed over."""
        values = self._versions.get(located.segment)
        if values is None:
            try:
                values = segments.floats(self._next(located.bytes, writable=False))
            except OSError as error:
                if self._connection.closed:
                    # Another thread closed it. The server has refused nothing.
                    raise CallEnded(grpc.StatusCode.CANCELLED, "the stream was closed here") from error
                raise SessionError(
                    f"the version of ticket {ticket} is not where it should be: {error}"
                ) from error
        # The server hands the others over again.
        known = {**self._versions, located.segment: values}
        self._versions = {number: known[number] for number in located.live if number in known}
        return Received(values, ticket, self)

    def mark_read(self, ticket: int) -> None:
        """Tell the server, by the control word, that the versions of tickets up to this one are read."""
        # The lock also orders this write behind the reads, on every processor.
        with self._guard:
            if ticket > self._word[0]:
                self._word[0] = ticket
