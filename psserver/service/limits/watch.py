"""Deadlines of calls: whatever lets this server wait for too long is cut."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psserver.service.limits.table import FIRST_MESSAGE, SILENT

# Between looks at all calls; seconds.
LOOK_EVERY = 0.2


class Caller:
    """The peer of one call: until when must it have moved? `deadline`: None while nothing is expected of it.

    The loop's thread owns it.
    """

    __slots__ = ("_cut", "cut_off", "deadline")

    def __init__(self, cut: Callable[[], object]) -> None:
        """`cut` ends the call soon: whatever it waits for is cancelled."""
        self._cut = cut
        self.deadline: float | None = None
        self.cut_off = False

    def cancel(self) -> None:
        """End the call."""
        self.cut_off = True
        self._cut()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """The peer must do what is waited for inside the block within so many seconds."""
        self.deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self.deadline = None


class Watch:
    """All calls of a server. The loop's thread owns it; close it at the end."""

    def __init__(self) -> None:
        self._calls: set[Caller] = set()
        # That have said nothing yet, in the order in which they came.
        self._silent: dict[Caller, None] = {}
        self._next: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @property
    def silent(self) -> int:
        """Calls that have said nothing yet."""
        return len(self._silent)

    @contextmanager
    def watching(self, caller: Caller) -> Iterator[Caller]:
        """Its deadlines hold inside the block."""
        self._calls.add(caller)
        try:
            yield caller
        finally:
            self._calls.discard(caller)

    @contextmanager
    def silence(self, caller: Caller) -> Iterator[None]:
        """The call's first message is awaited inside the block: in time, and among so many others at most. A new
        call that says nothing is cut before an older one that has spoken is refused anything."""
        if len(self._silent) >= SILENT.value:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()
        self._silent[caller] = None
        try:
            with caller.within(FIRST_MESSAGE.value):
                yield
        finally:
            self._silent.pop(caller, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        late = [c for c in self._calls if c.deadline is not None and c.deadline < now]
        for caller in late:
            self._calls.discard(caller)
            caller.cancel()
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)
