"""Passes over large arrays, on few threads beside the loop: whoever has little to do is not kept waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, TypeVar

from psserver.service.loop.owner import Owner

Made = TypeVar("Made")

# Bytes of a pass. One of so many takes some 0.2 ms: about what it costs to hand it to another thread and back.
LARGE: Final = 2**20
# Of a server, whatever the number of its workers.
THREADS: Final = 2


class HeavyWork:
    """Runs what is small at once, and what is large on a pool of `threads`, with that `name`. Close it at the end."""

    def __init__(self, owner: Owner, threads: int = THREADS, name: str = "heavy") -> None:
        self._owner = owner
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def begin(self) -> None:
        """Start the threads: later the system may give none. Raises RuntimeError."""
        started = Barrier(self._threads + 1)
        try:
            for _ in range(self._threads):
                self._pool.submit(started.wait)
        except RuntimeError:
            started.abort()
            raise
        started.wait()

    async def run(self, nbytes: int, work: Callable[[], Made]) -> Made:
        """What `work` returns or raises. It must touch nothing that the loop owns, if it is large.

        Whoever waits is cancelled only once the work has ended, for it uses arrays that would be given back then.
        """
        return work() if nbytes <= LARGE else await self.on_pool(work)

    async def on_pool(self, work: Callable[[], Made]) -> Made:
        """As `run`, on the pool whatever its size."""
        running = self._owner.loop.run_in_executor(self._pool, work)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            ended = self._owner.loop.create_future()
            running.add_done_callback(lambda _, ended=ended: ended.done() or ended.set_result(None))  # type: ignore[misc]
            try:
                await ended
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            # What it raised says nothing to one that is cancelled.
            running.exception()
            raise cancelled
        return running.result()

    def start(self, work: Callable[[], object], ended: Callable[[BaseException | None], object]) -> None:
        """Run it on the pool whatever its size; `ended` is called on the loop with what it raised."""

        def done(future: "asyncio.Future[object]") -> None:
            ended(future.exception())

        self._owner.loop.run_in_executor(self._pool, work).add_done_callback(done)

    def close(self) -> None:
        """Work under way is waited for: a pass over a model at most."""
        self._pool.shutdown()
