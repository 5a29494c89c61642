"""Waits of the event loop without a thread."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # It loads gRPC, which the simulator does without.
    from psserver.service.runtime import Runtime


def loop_time() -> float:
    """Return the time of the running loop, for what has no Runtime at hand."""
    return asyncio.get_running_loop().time()


@types.coroutine
def paused() -> Generator[None, Any, Any]:
    """Wait for `LoopSteps.resume`, and return what that gives."""
    return (yield None)


class LoopSteps:
    """A coroutine that goes on within the callback that ends its wait.

    A task would take one more turn of the loop for each request. The coroutine awaits `paused` and futures of the
    loop; there is no current task. `ended(error)` is called once, at its end. The loop's thread owns it.
    """

    __slots__ = ("_cancelled", "_coroutine", "_ended", "_future", "_loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, object],
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self._loop, self._ended = loop, ended
        # None once it has ended.
        self._coroutine: Coroutine[Any, Any, object] | None = coroutine
        # What it waits for, unless `paused`.
        self._future: asyncio.Future[Any] | None = None
        self._cancelled = False

    def resume(self, value: object = None) -> None:
        """Begin, or go on with `value` from `paused`. Not from within the coroutine."""
        if (coroutine := self._coroutine) is None:
            return
        try:
            if self._cancelled:
                self._cancelled = False
                waited = coroutine.throw(asyncio.CancelledError())
            else:
                waited = coroutine.send(value)
        except BaseException as error:
            self._coroutine = None
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise
            self._ended(None if isinstance(error, StopIteration) else error)
            return
        if waited is not None:
            self._future = waited
            waited.add_done_callback(self._done)

    def cancel(self) -> None:
        """Raise CancelledError where the coroutine waits, in the next turn: it may be the caller."""
        self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._future is None:
            self._cancelled = True
            self.resume()
        elif not self._future.cancel():
            # It is done, and `_done` about to be called.
            self._cancelled = True

    def _done(self, _: "asyncio.Future[Any]") -> None:
        self._future = None
        self.resume()


async def until(future: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for `future`, at most `seconds`. It is done afterwards."""
    timer = future.get_loop().call_later(seconds, settle, future)
    try:
        await future
    finally:
        timer.cancel()


def settle(future: "asyncio.Future[None]") -> None:
    """Set the future's result to None, unless it is done."""
    if not future.done():
        future.set_result(None)


class Waiters:
    """Waiters for a change of state that the loop's thread owns. Each checks its condition after every `notify`."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        # Checked before each `notify` on the path of a step.
        self.waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition()` holds, at most `seconds`; return whether it does."""
        if condition() or seconds <= 0:
            return condition()
        end = self._runtime.now() + seconds
        # The first waiter that woke may have taken what several wait for.
        while not condition() and (left := end - self._runtime.now()) > 0:
            future = self._runtime.loop.create_future()
            self.waiting[future] = condition
            try:
                await until(future, left)
            finally:
                self.waiting.pop(future, None)
        return condition()

    def notify(self) -> None:
        """Wake the waiters whose condition holds."""
        if self.waiting:
            for future, condition in list(self.waiting.items()):
                if condition():
                    del self.waiting[future]
                    settle(future)


class CounterWaits:
    """Waiters on a monotonic counter. An increase costs only the waiters that it ends."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._order = 0
        self.heap: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self.heap)

    async def wait_beyond(self, number: int, seconds: float) -> None:
        """Wait until the counter exceeds `number`, at most `seconds`."""
        self._order += 1
        entry = (number, self._order, self._runtime.loop.create_future())
        heappush(self.heap, entry)
        try:
            await until(entry[2], seconds)
        finally:
            self._forget(entry)

    def _forget(self, entry: "tuple[int, int, asyncio.Future[None]]") -> None:
        if entry in self.heap:
            self.heap.remove(entry)
            heapify(self.heap)

    def advance(self, number: int) -> None:
        """Wake the waiters that the counter's new value ends."""
        while self.heap and self.heap[0][0] < number:
            settle(heappop(self.heap)[2])

    def drop_all(self) -> None:
        """Wake all waiters."""
        heap, self.heap = self.heap, []
        for _, _, future in heap:
            settle(future)
