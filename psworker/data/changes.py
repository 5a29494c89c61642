"""The version that this worker has of one server, where weights travel as changes."""

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import WireDtypeError
from pswire.transport.deltas import add_change, checksum, longest_chain
from pswire.v1 import shard_pb2
from psworker.errors import SessionError

Floats = NDArray[np.float32]


class KnownVersion:
    """The newest version that came whole, or whole with changes. The holder of the server's `turn` uses it."""

    def __init__(self, codec: BlockCodec, layout: ShardLayout) -> None:
        self.codec, self._layout = codec, layout
        self._values = np.empty(layout.elements, np.float32)
        # The version to ask for changes since; None before the first one.
        self.base: shard_pb2.Base | None = None

    def buffer(self, count: int) -> NDArray[np.uint8]:
        """Return an array for `count` changes. Raises SessionError for more than a server may send."""
        most = 0 if self.base is None else longest_chain(self.codec, self._layout)
        if count > most:
            raise SessionError(f"expected at most {most} changes, got {count}")
        return np.empty(count * self.codec.size(self._layout), np.uint8)

    def take(self, version: int, values: Floats) -> None:
        """Keep a version that came whole."""
        self._values[...] = values
        self.base = shard_pb2.Base(version=version, checksum=checksum(values))

    def advance(self, version: int, chain: NDArray[np.uint8], count: int, out: Floats) -> None:
        """Add the changes that lead to a version, and write it to `out`. Raises SessionError."""
        self.base, found = None, 0
        try:
            for change in np.split(chain, count):
                found = add_change(self.codec, self._layout, change, self._values)
        except WireDtypeError as error:
            raise SessionError(f"the changes to version {version} do not fit: {error}") from error
        out[...] = self._values
        self.base = shard_pb2.Base(version=version, checksum=found)
