"""The backend of a server: compiled loops as soon as they are ready, on several threads."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from psserver.optimizers import AnyArray, Fallback, Loop, RowPass, Summing
from psserver.optimizers.row_kernels import NUMPY_ROWS, RowKernels, RowUpdate
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Variant = tuple[Loop, str]

# Elements in a range. 256 Ki take about 100 microseconds: well above the cost of waking a thread, and small enough that
# a thread which the system suspends for a moment delays the others little.
GRAIN = 256 * 1024
# Passes over fewer ranges run in the calling thread: waking and joining the others costs more than they save.
RANGES = 4


class ParallelRunner:
    """A pool of `threads` threads, including the caller's, that share the ranges of a pass.

    Threads start when first needed. Thread-safe. Close it, or use it as a context manager.
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

    def close(self) -> None:
        """End the threads. Later calls of `share` run in the caller's thread; none may start meanwhile."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "ParallelRunner":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()


class FastBackend:
    """A `psserver.optimizers.Backend` for one process. Close it at the end.

    One thread calls `prepare`, `wait_ready` and `close`; one thread at a time calls `run`. Only the compiler's thread
    writes `_compiled` (entry by entry) and `reason`; only `close` sets `_closing`. Readers use the momentary values.
    """

    def __init__(
        self, threads: int = 1, grain: int = GRAIN, loaded: Callable[[], object] = lambda: None
    ) -> None:
        """Compile in a thread that calls `loaded` when it has ended or failed."""
        self._loaded = loaded
        self._runner = ParallelRunner(threads, grain)
        self._compiled: dict[Variant, Callable[..., Any]] = {}
        self._loader: threading.Thread | None = None
        self._closing = False
        # The kernels of sparse tables; replaced once they are compiled.
        self.rows: RowKernels = NUMPY_ROWS
        self._row_updates: dict[RowPass, RowUpdate] = {}
        # Why numpy runs instead of compiled code; None if nothing is wrong.
        self.reason: str | None = None

    @property
    def threads(self) -> int:
        """The number of threads that share a pass over an array."""
        return self._runner.threads

    def run(
        self,
        loop: Loop,
        fallback: Fallback,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """Run `loop` if it is compiled for these arrays, else `fallback`, in ranges on all threads."""
        arguments = (*arrays, *scalars)
        compiled = self._compiled.get((loop, loop.variant(arguments)), fallback)
        first = arrays[0]
        if first is None:
            first = next(array for array in arrays if array is not None)
        if not self._runner.divides(first.size):
            return compiled(*arguments) is not False

        def part(start: int, stop: int) -> bool:
            pieces = (None if array is None else array[start:stop] for array in arrays)
            return compiled(*pieces, *scalars) is not False

        return self._runner.share(part, first.size)

    def total(
        self,
        loop: Loop,
        fallback: Summing,
        arrays: Sequence[AnyArray],
        scalars: Sequence[np.float32] = (),
    ) -> float | None:
        """Return the sum of `loop` or `fallback`: computed in ranges on all threads, and added in their order."""
        compiled = self._compiled.get((loop, loop.variant((*arrays, *scalars))), fallback)
        size = arrays[0].size
        if not self._runner.divides(size):
            whole: float = compiled(*arrays, *scalars)
            return None if whole < 0 else whole
        found: dict[int, float] = {}

        def part(start: int, stop: int) -> bool:
            found[start] = compiled(*(array[start:stop] for array in arrays), *scalars)
            return True

        self._runner.share(part, size)
        sums = [found[start] for start in sorted(found)]
        return None if min(sums) < 0 else sum(sums)

    def row_update(self, wanted: RowPass) -> RowUpdate | None:
        """Return the compiled pass to use now; None if there is none."""
        return self._row_updates.get(wanted)

    def prepare(
        self, variants: Iterable[Variant], *, rows: bool = False, passes: Iterable[RowPass] = ()
    ) -> None:
        """Compile in the background, or load what an earlier process compiled. `rows`: also the kernels of tables.

        `passes`: updates of rows where they lie. A later call waits for the one before it, and adds its loops.
        """
        wanted, updates = list(variants), list(dict.fromkeys(passes))
        if self._loader is not None:
            self._loader.join()
        self._loader = threading.Thread(target=self._load_all, args=(wanted, rows, updates), name="compiler")
        self._loader.start()

    def wait_ready(self, seconds: float | None = None) -> bool:
        """Wait for the end of `prepare`. Return True if all its loops are compiled."""
        if self._loader is None:
            return False
        self._loader.join(seconds)
        return not self._loader.is_alive() and self.reason is None and not self._closing

    def close(self) -> None:
        """End all threads, after the loop that is being compiled (below a second)."""
        self._closing = True
        if self._loader is not None:
            self._loader.join()
        self._runner.close()

    def __enter__(self) -> "FastBackend":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def _load_all(self, wanted: list[Variant], rows: bool, updates: list[RowPass]) -> None:
        self._load(wanted, rows, updates)
        self._loaded()

    def _load(self, wanted: list[Variant], rows: bool, updates: list[RowPass]) -> None:
        try:
            from psserver.fast.compiler import compile_loop
            from psserver.fast.row_kernels import CompiledRowKernels
            from psserver.fast.row_updates import compile_update
        except ImportError as error:
            self.reason = f"numba is not installed ({error})"
            log.info(
                "updates run in numpy: %s", self.reason, extra=event("updates_in_numpy", reason=self.reason)
            )
            return
        for loop, variant in wanted:
            if self._closing:
                return
            with self._told(loop.function.__name__):
                self._compiled[loop, variant] = compile_loop(loop, variant)
        if rows and not self._closing:
            self.rows = CompiledRowKernels()
        for each in updates:
            if self._closing:
                return
            with self._told("an update of rows"):
                self._row_updates[each] = compile_update(each)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Tell why something is not compiled."""
        try:
            yield
        except Exception as error:
            # A compiler may raise anything. Training continues in numpy, with the same bits.
            self.reason = f"{what} does not compile: {error}"
            extra = event("updates_in_numpy", reason=self.reason)
            log.warning("an update runs in numpy: %s", self.reason, extra=extra)
