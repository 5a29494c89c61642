"""The event loop: its owner thread, waits without a thread, and work on threads beside it."""

import asyncio
import gc
import selectors
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heapify, heappop, heappush
from threading import Barrier
from typing import Any, Final, Generic, TypeVar, cast

from pswire import running

Seen = TypeVar("Seen")


class TurnSelector(selectors.DefaultSelector):
    """A selector that first calls what waits for the end of the loop's turn: the loop selects once per turn."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], object]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for act in waiting:
                act()
            # The calls may have made tasks ready.
            timeout = 0.0
        return super().select(timeout)


class RunningLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count the time in which this process ran, so that no pause ends a wait at once."""

    def __init__(self) -> None:
        self._turns = TurnSelector()
        super().__init__(self._turns)

    def time(self) -> float:
        return running.now()

    def at_end_of_turn(self, act: Callable[[], object]) -> None:
        """Call `act`, which raises nothing, once all callbacks of this turn have run. What it makes ready runs next."""
        self._turns.waiting.append(act)


class Owner:
    """The event loop of a server, and the thread that runs it.

    Nothing that this thread owns has a lock; other threads (the metrics page, tests) call `ask`. Before the loop
    runs and after it has ended nothing changes, so they read directly.
    """

    def __init__(self) -> None:
        self._loop: RunningLoop | None = None
        self._thread: int | None = None
        # Unanswered questions, which the end of the loop must cancel.
        self._asked: set[Future[object]] = set()
        self._guard = threading.Lock()

    @property
    def loop(self) -> RunningLoop:
        assert self._loop is not None, "the server does not run yet"
        return self._loop

    def begin(self) -> None:
        """Make the running loop and this thread the owner from now on."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunningLoop)
        self._loop, self._thread = loop, threading.get_ident()

    def end(self) -> None:
        """End ownership: the loop has ended, and nothing changes any more."""
        with self._guard:
            self._thread = None
            asked, self._asked = self._asked, set()
        for future in asked:
            future.cancel()

    def ask(self, read: Callable[[], Seen]) -> Seen:
        """Return what `read` returns, called by the owner so that nothing changes meanwhile. From any thread."""
        future: Future[Seen] = Future()
        with self._guard:
            away = self._thread not in (None, threading.get_ident())
            if away:
                self._asked.add(future)  # type: ignore[arg-type]
                self.loop.call_soon_threadsafe(self._answer, future, read)
        if away:
            wait_for(future)
        return read() if future.cancelled() or not away else future.result()

    def _answer(self, future: "Future[Seen]", read: Callable[[], Seen]) -> None:
        with self._guard:
            self._asked.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(read())
        except Exception as error:
            future.set_exception(error)

    def tell(self, act: Callable[[], object]) -> None:
        """Call `act` on the loop soon. From any thread or signal handler; does nothing once the loop has ended."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            # The loop is closed.
            return


def wait_for(future: "Future[Seen]") -> None:
    """Block until the future is done or cancelled."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait()


@types.coroutine
def paused() -> Generator[None, Any, Any]:
    """Wait for `Steps.resume`, and return what that gives."""
    return (yield None)


class Steps:
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


class Changes:
    """Waiters for a change of state that the loop's thread owns. Each checks its condition after every `notify`."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        # Checked before each `notify` on the path of a step.
        self.waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition()` holds, at most `seconds`; return whether it does."""
        if condition() or seconds <= 0:
            return condition()
        loop = self._loop()
        end = running.now() + seconds
        # The first waiter that woke may have taken what several wait for.
        while not condition() and (left := end - running.now()) > 0:
            future = loop.create_future()
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

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        self._order = 0
        self.heap: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self.heap)

    async def wait_beyond(self, number: int, seconds: float) -> None:
        """Wait until the counter exceeds `number`, at most `seconds`."""
        self._order += 1
        entry = (number, self._order, self._loop().create_future())
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


Made = TypeVar("Made")
# Bytes of a pass that is worth a thread: it takes some 0.2 ms, about the cost of handing it over and back.
LARGE_PASS: Final = 2**20
# Threads of a server, whatever the number of its workers.
PASS_THREADS: Final = 2


class _Outcome(Generic[Made]):
    """The result of a piece of work, or the exception that it raised."""

    def __init__(self, made: Made | None, error: BaseException | None) -> None:
        self._made, self._error = made, error

    @classmethod
    def of(cls, work: Callable[[], Made]) -> "_Outcome[Made]":
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


class HeavyWork:
    """Passes over large arrays, on a pool of `threads` beside the loop. Small work runs at once. Close it at the
    end."""

    def __init__(self, owner: Owner, threads: int = PASS_THREADS, name: str = "heavy") -> None:
        self._owner = owner
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
            # The cancellation outweighs what the work raised.
            try:
                raise cancelled
            finally:
                del cancelled
        return outcomes[0].result()

    def start(self, work: Callable[[], object], ended: Callable[[BaseException | None], object]) -> None:
        """Run the work on the pool; `ended` is called on the loop with its error, if any."""
        self._submit(work, lambda outcome: ended(outcome.take_error()))

    def _submit(self, work: Callable[[], Made], over: "Callable[[_Outcome[Made]], object]") -> None:
        """Run the work on the pool, and `over` on the loop in the first turn after it. A future of the pool would
        take another turn."""
        loop = self._owner.loop
        self._pool.submit(lambda: loop.call_soon_threadsafe(over, _Outcome.of(work)))

    def close(self) -> None:
        """Stop the threads, after the work under way: one pass over a model at most."""
        self._pool.shutdown()


def freeze_gc() -> None:
    """Exclude all present objects from garbage collection. From any thread.

    Modules and compiled loops are some 180,000 objects; a collection of them would stop the loop for 130 ms.
    Members and their connections, a tenth of that, come later and stay included.
    """
    gc.freeze()
