"""The version that this worker has of one server, where only what differs from it has to come."""

import numpy as np
from numpy.typing import NDArray

from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.deltas import add_change, checksum, longest_chain
from pswire.v1 import shard_pb2
from psworker.errors import SessionError

Floats = NDArray[np.float32]


class KnownVersion:
    """The newest version that came whole, or whole with changes. The holder of the server's `turn` uses it.

    Where versions change one group of rows after the other (`groups`), the groups come that have changed: as changes
    by a block codec, else as they are. Such a version belongs to one membership: in another one, the same number may
    be a version of another history. Else changes of all rows come, and the checksum tells histories apart.
    """

    def __init__(
        self, codec: Elementwise | BlockCodec, layout: ShardLayout, groups: Groups | None = None
    ) -> None:
        self.codec, self._layout, self._groups = codec, layout, groups
        self._values = np.empty(layout.elements, np.float32)
        # The version to ask for changes since; None before the first one, and while changes are being added.
        self.base: shard_pb2.Base | None = None

    def buffer(self, count: int, version: int) -> NDArray[np.uint8]:
        """Return an array for the `count` changes that lead to `version`. Raises SessionError for a wrong number."""
        return np.empty(sum(self.codec.size(part.layout) for part in self._parts(count, version)), np.uint8)

    def take(self, version: int, values: Floats) -> None:
        """Keep a version that came whole."""
        self._values[...] = values
        self.base = shard_pb2.Base(
            version=version, checksum=0 if self._groups is not None else checksum(values)
        )

    def repeat(self, version: int, out: Floats) -> None:
        """Write the version to `out`, which is the one that is here. Raises SessionError if it is not."""
        if self.base is None or self.base.version != version:
            known = "none" if self.base is None else f"version {self.base.version}"
            raise SessionError(f"the server takes version {version} for known, and {known} is here")
        out[...] = self._values

    def advance(self, version: int, chain: NDArray[np.uint8], count: int, out: Floats) -> None:
        """Add the changes in `chain`, the buffer, and write their version to `out`. Raises SessionError."""
        parts, found = self._parts(count, version), 0
        self.base = None
        try:
            for part in parts:
                size = self.codec.size(part.layout)
                found = self._add(part, chain[:size])
                chain = chain[size:]
        except WireDtypeError as error:
            raise SessionError(f"the changes to version {version} do not fit: {error}") from error
        out[...] = self._values
        self.base = shard_pb2.Base(version=version, checksum=found if self._groups is None else 0)

    def _parts(self, count: int, version: int) -> list[GroupPart]:
        if self._groups is not None:
            since = version if self.base is None else self.base.version
            parts = self._groups.changed(since, version, self._layout.server)
            if count != len(parts):
                raise SessionError(f"expected {len(parts)} groups that have changed, got {count}")
            return parts
        assert isinstance(self.codec, BlockCodec)
        most = 0 if self.base is None else longest_chain(self.codec, self._layout)
        if count > most:
            raise SessionError(f"expected at most {most} changes, got {count}")
        return [GroupPart(self._layout)] * count

    def _add(self, part: GroupPart, data: NDArray[np.uint8]) -> int:
        """Take over the change of a part. Return the checksum of the part as it is then."""
        total = 0
        if isinstance(self.codec, BlockCodec):
            values = part.take(self._values)
            total = add_change(self.codec, part.layout, data, values)
        else:
            values = np.empty(part.layout.elements, np.float32)
            ElementDecoder(self.codec, values).feed(data.data)
        if part.rows is not None:
            part.put(self._values, values)
        return total
