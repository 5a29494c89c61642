"""The threads that serve gRPC's calls, and what happens when the system gives no more of them."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from psserver.service.limits.table import CALLS, DEAF
from pswire.logs.events import event

log = logging.getLogger("ps-server")


class CallPool(ThreadPoolExecutor):
    """Raises nothing when no thread can be started: gRPC's own thread, which submits calls, would die of it and
    leave a server that is deaf for good. The call waits for a thread then, and `deafness` tells of one that waits
    for too long.
    """

    def __init__(self) -> None:
        super().__init__(int(CALLS.value), thread_name_prefix="rpc")
        # When each call that no thread has taken yet was submitted, in that order.
        self._waiting: dict[object, float] = {}
        self._refusal = ""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        key = object()
        self._waiting[key] = time.monotonic()

        def call() -> Any:
            self._waiting.pop(key, None)
            return fn(*args, **kwargs)

        return super().submit(call)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._refusal:
                running = threading.active_count()
                told = event("no_thread", threads=running)
                log.warning("no thread can be started for a call (%s); %d run", error, running, extra=told)
            self._refusal = str(error)

    def deafness(self) -> str | None:
        """Why calls are not served any more; None while they are."""
        oldest = next(iter(list(self._waiting.values())), None)
        if oldest is None or not self._refusal:
            return None
        waited = time.monotonic() - oldest
        if waited < DEAF.value:
            return None
        return (
            f"no thread can be started ({self._refusal}): a call has waited {waited:.0f} s for one of "
            f"{threading.active_count()}; allow this process more threads (ulimit -u, the container's pids limit)"
        )
