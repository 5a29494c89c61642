"""How often somebody may make the server do something that leaves lines in its logs and no work behind."""

import time
from collections.abc import Callable
from typing import Final

# Names that were never here before, in all: twice the workers that a job was started for may come at once.
NEW_PER_SECOND: Final = 20.0
FEWEST_NEW: Final = 256
# Of one name: joins after the first, or streams.
AGAIN_PER_SECOND: Final = 1.0
AGAIN: Final = 20


class Pace:
    """`burst` at once, then `rate` per second. The loop's thread owns it.

    `clock`: seconds, monotonic.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        # When all of the burst is there again.
        self._full = clock()

    def take(self) -> bool:
        """It may happen now, and has."""
        if self.wait() > 0:
            return False
        self.spend()
        return True

    def spend(self) -> None:
        """It has happened."""
        self._full = max(self._full, self._clock()) + 1 / self._rate

    def wait(self) -> float:
        """Seconds until it may happen; 0: now."""
        return max(0.0, self._full - self._clock() - (self._burst - 1) / self._rate)


class Arrivals:
    """Who may come now: new names at one pace, each known one at a pace of its own, so that no flood of strangers'
    names keeps a worker from coming back. The loop's thread owns it.

    `workers`: that the job was started for.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._new = Pace(NEW_PER_SECOND, max(FEWEST_NEW, 2 * workers), clock)
        self._known: dict[str, Pace] = {}

    def may(self, name: str) -> bool:
        return self._known.get(name, self._new).wait() == 0

    def came(self, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            self._new.spend()
            self._known[name] = Pace(AGAIN_PER_SECOND, AGAIN, self._clock)
        else:
            known.spend()
