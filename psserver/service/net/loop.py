"""The event loop: its owner thread, waits without a thread, and work on threads beside it."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heapify, heappop, heappush
from threading import Barrier
from typing import Final, Generic, TypeVar, cast

Seen = TypeVar("Seen")


class Owner:
    """The event loop of a server, and the thread that runs it.

    Nothing that it owns has a lock. Other threads (of the metrics page, of tests) `ask` it.
    Before the loop runs, and after it has ended, whoever asks reads for itself: nothing changes then.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        # What was asked and is not answered, lest the end of the loop leave somebody waiting.
        self._asked: set[Future[object]] = set()
        self._guard = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the server does not run yet"
        return self._loop

    def begin(self) -> None:
        """The running loop of this thread owns everything from now on."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def end(self) -> None:
        """The loop has ended; nothing changes any more."""
        with self._guard:
            self._thread = None
            asked, self._asked = self._asked, set()
        for future in asked:
            future.cancel()

    def ask(self, read: Callable[[], Seen]) -> Seen:
        """What `read` makes of what is owned, with nothing changing meanwhile. From any thread."""
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
        """Have `act` done soon. From any thread, and from a signal handler; nothing happens once the loop has ended."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            # It is closed.
            return


def wait_for(future: "Future[Seen]") -> None:
    """Until it is done, in whatever way."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait()


async def until(future: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for `future`, so many seconds at most. It is done afterwards."""
    timer = future.get_loop().call_later(seconds, settle, future)
    try:
        await future
    finally:
        timer.cancel()


def settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Changes:
    """Those that wait for a change of what the loop's thread owns: each looks again after every `notify`."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        # Looked at before each `notify` on the path of a step.
        self.waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """`condition()`, once it holds or after so many seconds."""
        if condition() or seconds <= 0:
            return condition()
        loop = self._loop()
        end = loop.time() + seconds
        # Who was woken first may have taken what several wait for.
        while not condition() and (left := end - loop.time()) > 0:
            future = loop.create_future()
            self.waiting[future] = condition
            try:
                await until(future, left)
            finally:
                self.waiting.pop(future, None)
        return condition()

    def notify(self) -> None:
        if self.waiting:
            for future, condition in list(self.waiting.items()):
                if condition():
                    del self.waiting[future]
                    settle(future)


class CounterWaits:
    """Those that wait until a number that only rises is beyond one of their own. A rise costs by those whom it ends."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        self._order = 0
        self.heap: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self.heap)

    async def wait_beyond(self, number: int, seconds: float, most: int) -> None:
        """Until the number is greater, or so many seconds are over. Of more than `most` that wait, the one that
        waits for the greatest number waits no longer."""
        self._order += 1
        entry = (number, self._order, self._loop().create_future())
        heappush(self.heap, entry)
        if len(self.heap) > most:
            farthest = max(self.heap)
            self._forget(farthest)
            settle(farthest[2])
        try:
            await until(entry[2], seconds)
        finally:
            self._forget(entry)

    def _forget(self, entry: "tuple[int, int, asyncio.Future[None]]") -> None:
        if entry in self.heap:
            self.heap.remove(entry)
            heapify(self.heap)

    def advance(self, number: int) -> None:
        while self.heap and self.heap[0][0] < number:
            settle(heappop(self.heap)[2])

    def drop_all(self) -> None:
        heap, self.heap = self.heap, []
        for _, _, future in heap:
            settle(future)


Made = TypeVar("Made")


# Bytes of a pass. One of so many takes some 0.2 ms: about what it costs to hand it to another thread and back.
LARGE_PASS: Final = 2**20


# Of a server, whatever the number of its workers.
PASS_THREADS: Final = 2


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

    def __init__(self, owner: Owner, threads: int = PASS_THREADS, name: str = "heavy") -> None:
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
        return work() if nbytes <= LARGE_PASS else await self.on_pool(work)

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


def freeze_gc() -> None:
    """All that this process has made so far stays: nobody looks through it again. From any thread."""
    gc.freeze()
