"""Memory that a server of this machine shares with this worker: slots to fill, versions to read in place."""

import threading
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pswire.transport import segments
from pswire.transport.segments import Place, SegmentError
from pswire.v1 import shard_pb2
from psworker.data.payloads import Pieces
from psworker.errors import Voided

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Received:
    """A version as it was received: an array of ours, or one of the server's to be read where it is.

    `values` is float32, or as it travelled.
    """

    values: NDArray[Any]
    ticket: int = 0
    attachment: "Attachment | None" = None
    # Where an array of ours goes when it is read, for the next version.
    spare: list[NDArray[Any]] | None = None

    def copied(self) -> Floats:
        """A float32 array to keep."""
        if self.attachment is not None:
            self.values = self.values.copy()
        else:
            self.spare = None
        self.release()
        return self.values.astype(np.float32, copy=False)

    def release(self) -> None:
        """It is read. Its contents may change from now on."""
        if self.attachment is not None:
            self.attachment.mark_read(self.ticket)
            self.attachment = None
        if self.spare is not None:
            self.spare.append(self.values)
            self.spare = None


class Attachment:
    """Raises SegmentError when a segment cannot be opened here.

    The server's `turn` owns it, but for the word, which the thread that has read a version writes under `_guard`.
    """

    def __init__(self, attached: shard_pb2.Attached) -> None:
        self.arena_versions = attached.arena_versions
        self._guard = threading.Lock()
        # A plain view: a number of numpy's takes five times as long to read.
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
        """To write the next payload into; None where none was lent."""
        return self._slots[0] if self._slots else None

    def filled(self, values: NDArray[Any] | Pieces) -> int:
        """The number of a slot that holds `values`, which are copied unless they are the slot; 0 without one."""
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
        """The version that lies there. Raises Voided when it is gone."""
        token = located.segment.token
        if token not in self._versions:
            live = set(located.live)
            self._versions = {t: values for t, values in self._versions.items() if t in live}
            try:
                memory = segments.open_segment(_place(located.segment), writable=False)
            except SegmentError as error:
                # A server takes no version back before the ticket's lease is over.
                raise Voided(f"the version of ticket {ticket} is gone: {error}") from error
            self._versions[token] = segments.floats(memory)
        return Received(self._versions[token], ticket, self)

    def mark_read(self, ticket: int) -> None:
        # The lock also keeps the order of the reads and this on every processor.
        with self._guard:
            if ticket > self._word[0]:
                self._word[0] = ticket


def _place(segment: shard_pb2.Segment) -> Place:
    return Place(segment.pid, segment.fd, segment.token, segment.bytes)
