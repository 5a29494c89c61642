"""The thread that works ahead of a training loop: it sends what is computed, and fetches what is needed next."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")


class Ahead:
    """One thread that makes call after call. What a call uses belongs to the thread until its result is taken."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        # A daemon, unlike an executor's thread: a program that forgets to close its session ends all the same.
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def submit(self, call: Callable[[], R]) -> "Future[R]":
        """Have the thread make this call after those that were submitted before."""
        result: Future[R] = Future()
        self._calls.put((call, result))
        return result

    def close(self) -> None:
        """End the thread when its calls are made."""
        self._calls.put(None)

    def _run(self) -> None:
        while (wanted := self._calls.get()) is not None:
            call, result = wanted
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)
