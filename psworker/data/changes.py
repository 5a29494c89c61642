"""The version that this worker has of one server, where only what differs from it has to come."""

import numpy as np
from numpy.typing import NDArray

from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.deltas import Adding, add_change, checksum, longest_chain
from pswire.v1 import shard_pb2
from psworker.errors import SessionError

Floats = NDArray[np.float32]


class KnownVersion:
    """The newest version that came whole, or whole with changes. The holder of the server's `turn` uses it."""

    def __init__(self, codec: BlockCodec, layout: ShardLayout) -> None:
        self.codec, self._layout = codec, layout
        self._values = np.empty(layout.elements, np.float32)
        # The version to ask for changes since; None before the first one, and while changes are being added.
        self.base: shard_pb2.Base | None = None
        self._adding: Adding | None = None

    def buffer(self, count: int, version: int) -> NDArray[np.uint8]:
        """Return an array for the `count` changes that lead to `version`. Raises SessionError for more than a server
        may send."""
        most = 0 if self.base is None else longest_chain(self.codec, self._layout)
        if count > most:
            raise SessionError(f"expected at most {most} changes, got {count}")
        chain = np.empty(count * self.codec.size(self._layout), np.uint8)
        self._adding = Adding(self.codec, self._layout, chain, self._values)
        return chain

    def arrived(self, nbytes: int) -> None:
        """Add what is in the first `nbytes` of the buffer. Raises SessionError."""
        self.base, adding = None, self._adding
        assert adding is not None, "there is a buffer"
        try:
            adding.upto(nbytes)
        except WireDtypeError as error:
            raise SessionError(f"the changes of a version do not fit: {error}") from error

    def take(self, version: int, values: Floats) -> None:
        """Keep a version that came whole."""
        self._values[...] = values
        self.base = shard_pb2.Base(version=version, checksum=checksum(values))

    def repeat(self, version: int, out: Floats) -> None:
        """Write the version to `out`, which is the one that is here. Raises SessionError if it is not."""
        _repeat(self.base, version, self._values, out)

    def advance(self, version: int, chain: NDArray[np.uint8], count: int, out: Floats) -> None:
        """Add the rest of the changes in `chain`, the buffer, and write their version to `out`. Raises SessionError."""
        self.arrived(chain.size)
        assert self._adding is not None
        found, self._adding = self._adding.checksum, None
        out[...] = self._values
        self.base = shard_pb2.Base(version=version, checksum=found)


class KnownGroups:
    """A `KnownVersion` where versions change one group of rows after the other: groups come as changes, or as they are.

    Belongs to one membership: in another one, the same number may be a version of another history.
    """

    def __init__(self, groups: Groups, server: int, codec: Elementwise | BlockCodec, elements: int) -> None:
        """`codec`: of changes, if it is a block codec."""
        self._groups, self._server, self._codec = groups, server, codec
        self._values = np.empty(elements, np.float32)
        self.base: shard_pb2.Base | None = None

    def _parts(self, version: int) -> list[GroupPart]:
        return [] if self.base is None else self._groups.changed(self.base.version, version, self._server)

    def buffer(self, count: int, version: int) -> NDArray[np.uint8]:
        parts = self._parts(version)
        if count != len(parts):
            raise SessionError(f"expected {len(parts)} groups that have changed, got {count}")
        return np.empty(sum(self._codec.size(part.layout) for part in parts), np.uint8)

    def arrived(self, nbytes: int) -> None:
        """Do nothing: groups are added when all of them are here."""

    def take(self, version: int, values: Floats) -> None:
        self._values[...] = values
        self.base = shard_pb2.Base(version=version)

    def repeat(self, version: int, out: Floats) -> None:
        _repeat(self.base, version, self._values, out)

    def advance(self, version: int, chain: NDArray[np.uint8], count: int, out: Floats) -> None:
        """Take over the groups that have changed, and write the version to `out`. Raises SessionError."""
        parts, self.base = self._parts(version), None
        try:
            for part in parts:
                size = self._codec.size(part.layout)
                part.put(self._values, self._advanced(part, chain[:size]))
                chain = chain[size:]
        except WireDtypeError as error:
            raise SessionError(f"the changes to version {version} do not fit: {error}") from error
        self.take(version, self._values)
        out[...] = self._values

    def _advanced(self, part: GroupPart, data: NDArray[np.uint8]) -> Floats:
        if isinstance(self._codec, BlockCodec):
            values = part.take(self._values)
            add_change(self._codec, part.layout, data, values)
        else:
            values = np.empty(part.layout.elements, np.float32)
            ElementDecoder(self._codec, values).feed(data.data)
        return values


def _repeat(base: shard_pb2.Base | None, version: int, values: Floats, out: Floats) -> None:
    if base is None or base.version != version:
        known = "none" if base is None else f"version {base.version}"
        raise SessionError(f"the server takes version {version} for known, and {known} is here")
    out[...] = values
