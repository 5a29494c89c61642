"""What the threads of a server share of its shard."""

import threading

from psserver.service.transport.shared_memory import Words
from psserver.shard import Shard


class SharedShard:
    """The shard, how far it has executed the log, why no further, and who reads its versions in place.

    `changed` owns everything here and the shard with all that it holds, except
    that the arrays of a `PendingUpdate` belong to the thread that computes it. A
    thread that changes something notifies it. Single values may be read without
    it, for a report or a first look.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.shard: Shard | None = None
        # Entries [0, executed) of the log are executed.
        self.executed = 0
        # Why no entry is executed any more.
        self.failure: str | None = None
        # An update was not finite: that is why.
        self.diverged = False
        self.closed = False
        # Complete payloads that were staged, and versions that were given out, since the start.
        self.received = 0
        self.served = 0
        # The control words of workers that read in place, by ticket.
        self._readers: dict[int, Words] = {}

    def finish(self, index: int) -> None:
        """Entry `index` is executed. Hold `changed`."""
        if self.shard is not None:
            self.end_reads(self.shard)
        self.executed = index + 1
        self.changed.notify_all()

    def fail(self, reason: str, *, diverged: bool = False) -> None:
        with self.changed:
            self.failure, self.diverged = reason, diverged
            self.changed.notify_all()

    def close(self) -> None:
        """No more orders; every wait ends."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    # Reading in place

    @property
    def reading(self) -> bool:
        """A worker reads in place, and wakes no thread when it has read."""
        return bool(self._readers)

    def begin_read(self, ticket: int, reader: Words) -> None:
        """The ticket's version is read in place. Hold `changed`."""
        if not self._readers:
            # An update that waits for this version must look for the word that it is read.
            self.changed.notify_all()
        self._readers[ticket] = reader

    def end_reads(self, shard: Shard) -> None:
        """Unpin what workers say that they have read. Hold `changed`."""
        if not self._readers:
            return
        for ticket in [t for t, reader in self._readers.items() if reader.has_read(t)]:
            shard.arena.unpin(ticket)
        self._readers = {t: self._readers[t] for t in shard.arena.in_place}
