"""One owner: the thread of the event loop. It alone touches the job, the outboxes and the shard's state."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
