"""Memory that frames are received into, used again and again, whichever connection they come on."""

from typing import Final

# Of a buffer, before anything has come: memory grows with what has come, not with what was announced.
FIRST: Final = 2**18
# Of what is received at once where no large frame is under way.
SMALL: Final = 2**17
# Buffers that are kept while no large frame is under way.
KEPT: Final = 4


class Buffers:
    """The loop's thread owns it."""

    def __init__(self) -> None:
        # All small frames are received here; nothing is kept in it.
        self.small = bytearray(SMALL)
        self.view = memoryview(self.small)
        self._free: list[bytearray] = []
        # Bytes of those that are taken.
        self.taken = 0

    def take(self, length: int) -> bytearray:
        """For a frame of so many bytes; it may be smaller (see `at_least`)."""
        buffer = self._free.pop() if self._free else bytearray(min(length, FIRST))
        self.taken += len(buffer)
        return buffer

    def at_least(self, buffer: bytearray, filled: int, more: int, length: int) -> bytearray:
        """One in which `more` bytes fit behind those that are there; `length`: of the whole frame."""
        if len(buffer) >= filled + more:
            return buffer
        # A view of it may be in use: it is replaced, never resized.
        larger = bytearray(min(length, max(2 * len(buffer), filled + more)))
        larger[:filled] = memoryview(buffer)[:filled]
        self.taken += len(larger) - len(buffer)
        return larger

    def give(self, buffer: bytearray) -> None:
        """The largest are kept."""
        self.taken -= len(buffer)
        self._free.append(buffer)
        if len(self._free) > KEPT:
            sizes = [len(each) for each in self._free]
            del self._free[sizes.index(min(sizes))]
