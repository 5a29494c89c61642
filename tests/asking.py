"""Questions to the thread that owns a server's state, from another thread."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from psserver.service.runtime import Runtime

Seen = TypeVar("Seen")


def ask(runtime: Runtime, read: Callable[[], Seen]) -> Seen:
    """Return what `read` returns, called in the loop; here where that has ended, so nothing changes any more."""
    answer: Future[Seen] = Future()

    def look() -> None:
        try:
            answer.set_result(read())
        except Exception as error:
            answer.set_exception(error)

    runtime.tell(look)
    while runtime.runs:
        try:
            return answer.result(0.1)
        except TimeoutError:
            continue
    return answer.result(0) if answer.done() else read()
