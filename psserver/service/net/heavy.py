"""Passes over large arrays, on few threads beside the loop: whoever has little to do is not kept waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, Generic, TypeVar, cast

from psserver.service.net.owner import Owner

Made = TypeVar("Made")

# Bytes of a pass. One of so many takes some 0.2 ms: about what it costs to hand it to another thread and back.
LARGE: Final = 2**20
# Of a server, whatever the number of its workers.
THREADS: Final = 2


class _Outcome(Generic[Made]):
    """What some work returned or raised."""

    def __init__(self, made: Made | None, error: BaseException | None) -> None:
        self._made, self.error = made, error

    @classmethod
    def of(cls, work: Callable[[], Made]) -> "_Outcome[Made]":
        try:
            return cls(work(), None)
        except BaseException as error:
            return cls(None, error)

    def result(self) -> Made:
        if self.error is not None:
            raise self.error
        return cast(Made, self._made)


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
        loop = self._owner.loop
        ended = loop.create_future()
        outcomes: list[_Outcome[Made]] = []

        def over(outcome: _Outcome[Made]) -> None:
            outcomes.append(outcome)
            if not ended.done():
                ended.set_result(None)

        self._submit(work, over)
        cancelled: asyncio.CancelledError | None = None
        while not outcomes:
            try:
                await ended
            except asyncio.CancelledError as error:
                cancelled, ended = error, loop.create_future()
        if cancelled is not None:
            # What it raised says nothing to one that is cancelled.
            raise cancelled
        return outcomes[0].result()

    def start(self, work: Callable[[], object], ended: Callable[[BaseException | None], object]) -> None:
        """Run it on the pool whatever its size; `ended` is called on the loop with what it raised."""
        self._submit(work, lambda outcome: ended(outcome.error))

    def _submit(self, work: Callable[[], Made], over: "Callable[[_Outcome[Made]], object]") -> None:
        """`over` is called on the loop in the first turn after the work; a future of the pool would take another."""
        loop = self._owner.loop
        self._pool.submit(lambda: loop.call_soon_threadsafe(over, _Outcome.of(work)))

    def close(self) -> None:
        """Work under way is waited for: a pass over a model at most."""
        self._pool.shutdown()
