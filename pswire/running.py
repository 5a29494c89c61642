"""The time in which this process ran. It is the only clock of deadlines in servers and workers.

A process that stood still (a debugger, swap, a suspended machine, a virtual machine that moves) has heard nobody
meanwhile. By a system's clock all its deadlines would be over at once when it wakes, for peers that did nothing wrong.
On this clock a pause takes at most `STEP` seconds.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

#: Most seconds that count between two looks at the system's clock, and seconds between two looks.
STEP: Final = 0.25
LOOK: Final = 0.1


class RunningClock:
    """Counts as `system` does, but at most `STEP` seconds from one `look` to the next. Thread-safe. It never goes back.

    Somebody has to call `look` every `LOOK` seconds, or less time counts than has passed.
    """

    def __init__(self, system: Callable[[], float] = time.monotonic) -> None:
        self._system = system
        start = system()
        # The system's time at the last look, and this clock's. Replaced as a whole.
        self._looked = start, start

    def now(self) -> float:
        """Return the present time in seconds."""
        seen, counted = self._looked
        return counted + min(self._system() - seen, STEP)

    def look(self) -> None:
        """Let the time since the last look count. One thread at a time."""
        seen, counted = self._looked
        present = self._system()
        self._looked = present, counted + min(present - seen, STEP)


class _Watched:
    """This process's clock, and the thread that looks."""

    def __init__(self) -> None:
        self._clock = RunningClock()
        self._guard = threading.Lock()
        self._looks = False

    def now(self) -> float:
        if not self._looks:
            self._begin()
        return self._clock.now()

    def _begin(self) -> None:
        with self._guard:
            if not self._looks:
                self._clock.look()
                threading.Thread(target=self._look, name="clock", daemon=True).start()
                self._looks = True

    def _look(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(LOOK)
            self._clock.look()

    def forked(self) -> None:
        """Begin anew in a child, which has the parent's clock and none of its threads."""
        self._guard, self._looks = threading.Lock(), False


_watched = _Watched()
os.register_at_fork(after_in_child=_watched.forked)

system = time.monotonic
"""The system's clock, for how long work took: a computation that keeps the interpreter is no pause."""

now = _watched.now
"""Return the seconds that this process has run. Only differences mean anything, and only within one process."""
