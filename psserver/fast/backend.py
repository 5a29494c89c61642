"""Runs compiled loops, on several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

import numpy as np

from psserver.fast.loops import AnyArray, Loop
from psserver.fast.ready import loop_of

# Elements in a range. 256 Ki take about 100 microseconds: well above the cost of waking a thread, and small enough that
# a thread which the system suspends for a moment delays the others little.
GRAIN = 256 * 1024
# Passes over fewer ranges run in the calling thread: waking and joining the others costs more than they save.
RANGES = 4


class Backend:
    """Runs loops; `threads` threads, including the caller's, share the ranges of a large array.

    What is written does not depend on their number. Threads start when first needed. One thread at a time calls `run`
    and `total`; `share` is thread-safe. Close it at the end, or use it as a context manager.
    """

    def __init__(self, threads: int = 1, grain: int = GRAIN) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; expected at least 1")
        if grain < 1:
            raise ValueError(f"grain is {grain}; expected at least 1")
        self.threads = threads
        self._grain = grain
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="runner")

    def divides(self, size: int) -> bool:
        """Return True if `share` divides this many elements among threads."""
        return self._pool is not None and size >= RANGES * self._grain

    def share(self, part: Callable[[int, int], bool], size: int) -> bool:
        """Call ``part(start, stop)`` for disjoint ranges that cover ``range(size)``; return True if all are true.

        Returns when all ranges are done, and then raises an exception that a part raised.
        """
        if self._pool is None or not self.divides(size):
            return part(0, size)
        # All threads draw from one iterator: an idle thread takes the next range.
        starts = iter(range(0, size, self._grain))

        def take() -> bool:
            good = True
            for start in starts:
                good = part(start, min(start + self._grain, size)) and good
            return good

        others = []
        if not self._closed:
            others = [self._pool.submit(take) for _ in range(self.threads - 1)]
        try:
            good = take()
        finally:
            wait(others)
        return all([good, *(other.result() for other in others)])

    def run(
        self,
        loop: Loop,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """Run one pass over flat arrays of equal length. Return False if the pass returned False for any range."""
        arguments = (*arrays, *scalars)
        compiled = loop_of((loop, loop.variant(arguments)))
        first = arrays[0]
        if first is None:
            first = next(array for array in arrays if array is not None)
        if not self.divides(first.size):
            return compiled(*arguments) is not False

        def part(start: int, stop: int) -> bool:
            pieces = (None if array is None else array[start:stop] for array in arrays)
            return compiled(*pieces, *scalars) is not False

        return self.share(part, first.size)

    def total(
        self, loop: Loop, arrays: Sequence[AnyArray], scalars: Sequence[np.float32] = ()
    ) -> float | None:
        """Return the sum that one pass computes, or None if it was negative for any range. Arrays are not empty.

        Sums of ranges are added in the order of the ranges.
        """
        compiled = loop_of((loop, loop.variant((*arrays, *scalars))))
        size = arrays[0].size
        if not self.divides(size):
            whole: float = compiled(*arrays, *scalars)
            return None if whole < 0 else whole
        found: dict[int, float] = {}

        def part(start: int, stop: int) -> bool:
            found[start] = compiled(*(array[start:stop] for array in arrays), *scalars)
            return True

        self.share(part, size)
        sums = [found[start] for start in sorted(found)]
        return None if min(sums) < 0 else sum(sums)

    def close(self) -> None:
        """End the threads. Later calls of `share` run in the caller's thread; none may start meanwhile."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()


ALONE: Final = Backend()
"""The backend of whoever has no threads to spare."""
