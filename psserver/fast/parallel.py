"""Threads that share the ranges of one pass."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

# Elements. A range of 256 Ki takes some 100 microseconds: well above what it
# costs to wake a thread, small enough that a thread which the system takes
# away for a moment holds up little.
GRAIN = 256 * 1024
# Fewer ranges than these are not shared: to wake the others and to wait for them costs more than they save.
RANGES = 4


class ParallelRunner:
    """`threads` threads, one of which is the caller's. Made when first needed; idle ones wait.

    May be used from several threads at once. Close it, or use it as a context manager.
    """

    def __init__(self, threads: int, grain: int = GRAIN) -> None:
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
        """Whether `share` gives so many elements to more than one thread."""
        return self._pool is not None and size >= RANGES * self._grain

    def share(self, part: Callable[[int, int], bool], size: int) -> bool:
        """Call ``part(start, stop)`` for disjoint ranges that cover ``range(size)``; are all true?

        Returns when all are done. An exception in a part is raised here, after that.
        """
        if self._pool is None or not self.divides(size):
            return part(0, size)
        # One iterator for all: a free thread takes the next range.
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

    def close(self) -> None:
        """End the threads. A later `share` works alone; none may begin while this runs."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "ParallelRunner":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()
