"""A coroutine that runs without a Task: each step in the very callback that makes it possible.

A Task would take a turn of the loop to begin again. A small request is parsed,
decided, executed and answered in the callback that read it instead.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


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
