"""Threads beside the event loop: what they make is handed to it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, Generic, TypeVar, cast

Made = TypeVar("Made")
# Bytes of a pass that is worth a thread: it takes some 0.2 ms, about the cost of handing it over and back.
LARGE_PASS: Final = 2**20


class Outcome(Generic[Made]):
    """The result of a piece of work, or the exception that it raised."""

    def __init__(self, made: Made | None, error: BaseException | None) -> None:
        self._made, self._error = made, error

    @classmethod
    def of(cls, work: Callable[[], Made]) -> "Outcome[Made]":
        try:
            return cls(work(), None)
        except BaseException as error:
            return cls(None, error)

    def take_error(self) -> BaseException | None:
        """Return the exception, once. Its traceback has frames that have this object, and the arrays that the work was
        about: kept here, they would stay until a collection."""
        error, self._error = self._error, None
        return error

    def result(self) -> Made:
        if (error := self.take_error()) is not None:
            try:
                raise error
            finally:
                del error
        return cast(Made, self._made)


class Pool:
    """Threads beside the loop. Close them at the end."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop], threads: int, name: str) -> None:
        self._loop = loop
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def begin(self) -> None:
        """Start the threads now; later the system may refuse. Raises RuntimeError."""
        started = Barrier(self._threads + 1)
        try:
            for _ in range(self._threads):
                self._pool.submit(started.wait)
        except RuntimeError:
            started.abort()
            raise
        started.wait()

    async def run(self, nbytes: int, work: Callable[[], Made]) -> Made:
        """Return or raise what `work` does. If large, it runs on the pool and must touch nothing that the loop
        owns.

        A waiting task is cancelled only when the work has ended, because the work uses arrays that would be freed
        then.
        """
        return work() if nbytes <= LARGE_PASS else await self.on_pool(work)

    async def on_pool(self, work: Callable[[], Made]) -> Made:
        """Run the work on the pool whatever its size; otherwise as `run`."""
        loop = self._loop()
        ended = loop.create_future()
        outcomes: list[Outcome[Made]] = []

        def over(outcome: Outcome[Made]) -> None:
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
            # The cancellation outweighs what the work raised.
            try:
                raise cancelled
            finally:
                del cancelled
        return outcomes[0].result()

    async def aside(self, work: Callable[[], Made]) -> Made:
        """Run work that touches nothing of the loop's. A cancelled wait for it ends at once, and the work goes on."""
        ended: asyncio.Future[Outcome[Made]] = self._loop().create_future()

        def over(outcome: Outcome[Made]) -> None:
            if not ended.done():
                ended.set_result(outcome)

        self._submit(work, over)
        return (await ended).result()

    def start(self, work: Callable[[], object], ended: Callable[[BaseException | None], object]) -> None:
        """Run the work on the pool; `ended` is called on the loop with its error, if any."""
        self._submit(work, lambda outcome: ended(outcome.take_error()))

    def _submit(self, work: Callable[[], Made], over: "Callable[[Outcome[Made]], object]") -> None:
        """Run the work on the pool, and `over` on the loop in the first turn after it. A future of the pool would
        take another turn."""
        loop = self._loop()
        self._pool.submit(lambda: loop.call_soon_threadsafe(over, Outcome.of(work)))

    def close(self, *, wait: bool = True) -> None:
        """Stop the threads; `wait`: after the work under way."""
        self._pool.shutdown(wait=wait)
