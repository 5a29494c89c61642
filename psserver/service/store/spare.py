"""Memory for copies that is got before it is needed, and kept between them: getting it takes longer than copying."""

import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from psserver.service.guard.ledger import MODEL, MemoryLedger

Floats = NDArray[np.float32]

# Of memory, while nothing is in it.
KIND = "checkpoint, spare"
# Elements that are touched at once: whoever runs beside this gets a turn.
PIECE = 1 << 22
# One in so many is touched: a page is no smaller.
STEP = 1024


@dataclass(frozen=True, slots=True)
class Touched:
    """Arrays that a thread has the system find memory for, until it is told to stop. `wait` before they are used."""

    arrays: list[Floats]
    _stop: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def before(cls, arrays: list[Floats]) -> "Touched":
        """They have their memory already."""
        made = cls(arrays)
        made._ended.set()
        return made

    def run(self) -> None:
        """On another thread. Raises nothing: the system gives such memory, or ends the process."""
        try:
            for piece in self.pieces():
                if self._stop.is_set():
                    return
                piece[::STEP] = 0
        finally:
            self._ended.set()

    def pieces(self) -> Iterator[Floats]:
        """All of them, a little at a time."""
        for values in self.arrays:
            for start in range(0, values.size, PIECE):
                yield values[start : start + PIECE]

    def stop(self) -> None:
        """They are needed now, or not at all."""
        self._stop.set()

    def wait(self) -> list[Floats]:
        """The arrays, once nobody writes to them any more: soon after `stop`. Any thread may."""
        self._ended.wait()
        return self.arrays


class SpareArrays:
    """Arrays of float32 that nobody uses, in the account of `memory`. The loop's thread owns it."""

    def __init__(self, memory: MemoryLedger, threads: Executor) -> None:
        self._memory, self._threads = memory, threads
        self._held: Touched | None = None

    def prepare(self, sizes: Collection[int]) -> Future[None] | None:
        """Have arrays of so many elements ready soon, where memory has room for them; beside the loop. None: there
        are some, or there is no room."""
        if self._held is not None or self._memory.take(MODEL, KIND, 4 * sum(sizes)) is not None:
            return None
        try:
            self._held = Touched([np.empty(size, np.float32) for size in sizes])
        except MemoryError:
            self._memory.put(MODEL, KIND, 0)
            return None
        return self._threads.submit(self._held.run)

    def keep(self, arrays: Iterable[Floats]) -> None:
        """They are of use for the next copy, where memory has room for them."""
        kept = list(arrays)
        if self._held is None and self._memory.take(MODEL, KIND, sum(a.nbytes for a in kept)) is None:
            self._held = Touched.before(kept)

    def take(self) -> Touched | None:
        """What there is: whoever takes it accounts for it."""
        held, self._held = self._held, None
        if held is not None:
            held.stop()
            self._memory.put(MODEL, KIND, 0)
        return held
