"""Deadlines of calls: one thread cuts whatever lets this server wait for too long."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from psserver.service.limits.table import FIRST_MESSAGE, SILENT

# Between looks at all calls; seconds.
LOOK_EVERY = 0.2

M = TypeVar("M")


class Caller:
    """The peer of one call: is it there, and until when must it have moved?

    `deadline` belongs to the thread of the call, None while nothing is expected of the peer; the watch reads it.
    """

    __slots__ = ("_cut", "_is_active", "cut_off", "deadline")

    def __init__(self, is_active: Callable[[], bool], cut: Callable[[], object]) -> None:
        self._is_active, self._cut = is_active, cut
        self.deadline: float | None = None
        self.cut_off = False

    def is_active(self) -> bool:
        return not self.cut_off and self._is_active()

    def cancel(self) -> None:
        """End the call, from any thread: whatever waits for its peer is woken."""
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
    """All calls of a server. Any thread may call it; `_lock` owns the collections. Close it at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[Caller] = set()
        # That have said nothing yet, in the order in which they came.
        self._silent: dict[Caller, None] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()

    @property
    def silent(self) -> int:
        """Calls that have said nothing yet."""
        with self._lock:
            return len(self._silent)

    @contextmanager
    def watching(self, caller: Caller) -> Iterator[Caller]:
        """Its deadlines hold inside the block."""
        with self._lock:
            self._calls.add(caller)
        try:
            yield caller
        finally:
            with self._lock:
                self._calls.discard(caller)

    def heard(self, messages: Iterable[M], caller: Caller) -> Iterator[M]:
        """`messages`, of which the first must come in time. A new call that says nothing is cut before an older
        member's waits for a thread."""
        incoming = iter(messages)
        oldest = None
        with self._lock:
            if len(self._silent) >= SILENT.value:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
            self._silent[caller] = None
        if oldest is not None:
            oldest.cancel()
        try:
            with caller.within(FIRST_MESSAGE.value):
                first = next(incoming, None)
        finally:
            with self._lock:
                self._silent.pop(caller, None)
        if first is not None:
            yield first
            yield from incoming

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY):
            now = time.monotonic()
            with self._lock:
                late = [c for c in self._calls if c.deadline is not None and c.deadline < now]
                for caller in late:
                    self._calls.discard(caller)
            for caller in late:
                caller.cancel()


def sent(replies: Iterable[M], caller: Caller, seconds: Callable[[M], float]) -> Iterator[M]:
    """`replies`, each of which the peer must take within `seconds` of it: a peer that does not read holds nothing."""
    for reply in replies:
        caller.deadline = time.monotonic() + seconds(reply)
        yield reply
        caller.deadline = None
