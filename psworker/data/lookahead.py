"""A thread that reads rows of the next batch while the training loop computes on this one."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from pswire import running
from pswire.logs.events import event
from psworker.errors import SessionError

log = logging.getLogger("ps-worker")

Read = Callable[[], object]
# The most batches without lookahead after readings for which the loop had to wait.
LONGEST_PAUSE: Final = 64


class Lookahead:
    """Reads early, one reading at a time. The training loop's thread calls the methods.

    A computation that is shorter than the reading hides little of it, and then rows travel twice for nothing. Each time
    that the loop waits for more than half of a reading, it does without the next 1, 2, 4 ... ones.
    """

    def __init__(self, clock: Callable[[], float] = running.now) -> None:
        self._clock = clock
        self._wanted: queue.SimpleQueue[tuple[Read, Future[float]] | None] = queue.SimpleQueue()
        # The reading under way, which returns when it began.
        self._under_way: Future[float] | None = None
        self._runs = False
        self._pause, self._left = 1, 0

    def begin(self, read: Read) -> None:
        """Call `read` in the thread, unless another reading is under way, or it pauses."""
        if self._under_way is not None:
            return
        if self._left:
            self._left -= 1
            return
        if not self._runs:
            # A daemon, unlike an executor's thread: a program that forgets to close its session ends all the same.
            threading.Thread(target=self._work, name="lookahead", daemon=True).start()
            self._runs = True
        self._under_way = Future()
        self._wanted.put((read, self._under_way))

    @property
    def ended(self) -> bool:
        """Whether nothing is being read."""
        return self._under_way is None or self._under_way.done()

    def settle(self) -> None:
        """Wait for a reading that has begun, and forget one that has not. Raises what `read` did, but for SessionError:
        then rows come with their version."""
        under_way, self._under_way = self._under_way, None
        if under_way is None or under_way.cancel():
            return
        waits, since = not under_way.done(), self._clock()
        try:
            began = under_way.result()
        except SessionError as error:
            log.info("no rows of the next batch early: %s", error, extra=event("rows_not_early"))
            return
        now = self._clock()
        if waits and 2 * (now - since) > now - began:
            self._left, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        else:
            self._pause = 1

    def close(self) -> None:
        """End the thread, after the reading under way."""
        self._wanted.put(None)

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            read, ended = wanted
            if not ended.set_running_or_notify_cancel():
                continue
            try:
                began = self._clock()
                read()
                ended.set_result(began)
            except BaseException as error:
                ended.set_exception(error)
