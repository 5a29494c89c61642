"""One owner: the thread of the event loop. It alone touches the job, the outboxes and the shard's state."""

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

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


@types.coroutine
def parked() -> Generator[None, Any, Any]:
    """Wait for `Steps.resume`, and for what that gives."""
    return (yield None)


class Steps:
    """Runs `coroutine`, which awaits futures of the loop and `parked`. `ended(error)` is called once, at its end.

    Every method is for the loop's thread, and none from within the coroutine but `cancel`.
    """

    __slots__ = ("_awaited", "_coroutine", "_ended", "_loop", "_over")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, object],
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._ended = ended
        self._awaited: asyncio.Future[Any] | None = None
        self._over = False

    def resume(self, value: object = None) -> None:
        """Begin, or go on with `value` from `parked`."""
        if self._over:
            return
        try:
            awaited = self._coroutine.send(value)
        except StopIteration:
            self._finish(None)
        except (Exception, asyncio.CancelledError) as error:
            self._finish(error)
        else:
            if awaited is not None:
                self._await(awaited)

    def cancel(self) -> None:
        """Raise CancelledError where it waits, soon: the caller may be the coroutine itself."""
        self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._over:
            return
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.remove_done_callback(self._done)
        try:
            awaited = self._coroutine.throw(asyncio.CancelledError())
        except StopIteration:
            self._finish(None)
        except (Exception, asyncio.CancelledError) as error:
            self._finish(error)
        else:
            if awaited is not None:
                self._await(awaited)

    def _await(self, awaited: "asyncio.Future[Any]") -> None:
        # As a Task tells a future that it is waited for.
        awaited._asyncio_future_blocking = False
        self._awaited = awaited
        awaited.add_done_callback(self._done)

    def _done(self, _: "asyncio.Future[Any]") -> None:
        self._awaited = None
        self.resume()

    def _finish(self, error: BaseException | None) -> None:
        self._over = True
        self._ended(error)
