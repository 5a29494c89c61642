"""A server without a copy is given one, and takes it up."""

from psserver.service.guard.memory import Memory
from psserver.service.replicas.transfer import ArrivingCopy, CopyError, WholeCopy, digest_of, first_difference
from psserver.shard import Shard, ShardState
from pswire.v1 import shard_pb2


class Arrival:
    """The copy under way to this server. The loop's thread owns it. `here`: whether all of it has come."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._taken = memory, 0
        self._arriving: ArrivingCopy | None = None
        self.here = False

    @property
    def at(self) -> int:
        """How many items are executed in it; 0 if none has begun to come."""
        return 0 if self._arriving is None else self._arriving.at

    def take(self, piece: shard_pb2.CopyPiece) -> None:
        """Take a piece; the first one of a copy replaces what came before. Raises Refused for one that does not
        follow, and CopyError if there is no memory for the copy and its arrays."""
        if not piece.offset:
            self.end()
            refusal = self._memory.take(2 * piece.bytes)
            if refusal is not None:
                raise CopyError(f"there is no memory for a copy: {refusal}")
            self._taken, self._arriving = 2 * piece.bytes, ArrivingCopy(piece)
        if self._arriving is not None:
            self.here = self._arriving.take(piece)

    def read(self) -> WholeCopy:
        """Return the copy. From any thread. Raises CopyError for a damaged one."""
        assert self._arriving is not None
        return self._arriving.read()

    def end(self) -> None:
        """Keep nothing of it."""
        self._arriving, self.here = None, False
        self._memory.give(self._taken)
        self._taken = 0


def restore(shard: Shard, whole: WholeCopy) -> None:
    """Restore a new shard from a copy. Raises StateError, CopyError for a version that is not the primary's, and what a
    damaged copy leads to: ValueError, KeyError, TypeError."""
    about = whole.about
    shard.restore(ShardState.from_json(about["shard"], whole.arrays))
    own, expected = digest_of(shard, shard.version), bytes.fromhex(about["digest"])
    if own != expected:
        where = first_difference(shard, own, expected)
        raise CopyError(f"version {shard.version} is not the primary's: it differs in {where}")
