"""The large frame that a connection is receiving: its memory grows with what has come, and is used again."""

from psserver.service.transport.buffers import Buffers


class LargeFrame:
    """One at a time: `begin` it, receive into `room`, count what came in `filled`, and `take` it once none is missing.

    `length`: of the whole frame, in bytes. The loop's thread owns it.
    """

    __slots__ = ("_buffers", "_memory", "_taken", "filled", "length")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._memory: bytearray | None = None
        # The last whole frame's.
        self._taken: bytearray | None = None
        self.filled = self.length = 0

    @property
    def begun(self) -> bool:
        return self._memory is not None

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return self.length - self.filled

    @property
    def fits(self) -> bool:
        """There is memory for all of it already."""
        return len(self._memory or b"") >= self.length

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return len(self._memory or b"") + len(self._taken or b"")

    def begin(self, length: int, data: memoryview) -> None:
        """`data`: what has come of it."""
        self.length, self.filled = length, len(data)
        memory = self._buffers.take(length)
        self._memory = memory = self._buffers.at_least(memory, 0, len(data), length)
        memory[: len(data)] = data

    def room(self, most: int) -> memoryview:
        """For the next bytes, `most` of them at the most."""
        assert self._memory is not None
        self._memory = memory = self._buffers.at_least(self._memory, self.filled, 1, self.length)
        return memoryview(memory)[self.filled : min(len(memory), self.length, self.filled + most)]

    def all(self) -> memoryview:
        """The whole frame, whatever has come of it. Only where it `fits`."""
        return memoryview(self._memory or b"")[: self.length]

    def take(self) -> memoryview:
        """The frame, of which nothing is missing: good until `reuse`."""
        frame = self.all()
        self._taken, self._memory = self._memory, None
        return frame

    def reuse(self) -> None:
        """Nobody reads the frame that was taken any more."""
        if self._taken is not None:
            self._buffers.give(self._taken)
            self._taken = None

    def release(self) -> None:
        """The connection has no more use for memory."""
        if self._memory is not None:
            self._buffers.give(self._memory)
            self._memory = None
        self.reuse()
