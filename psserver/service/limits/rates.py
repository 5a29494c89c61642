"""How often somebody may make the server do something that leaves lines in its logs and no work behind."""

import time
from collections.abc import Callable
from typing import Final

# Names that have committed nothing, all together: twice the workers that a job was started for may come at once.
NEW_PER_SECOND: Final = 20.0
FEWEST_NEW: Final = 256
# Of one name that has committed: joins, or streams.
AGAIN_PER_SECOND: Final = 1.0
AGAIN: Final = 20


class TokenBucket:
    """Lets `burst` happen at once, then `rate` per second. The loop's thread owns it.

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

    @property
    def full(self) -> bool:
        """All of the burst is there, as if nothing had happened."""
        return self._full <= self._clock()

    def wait(self) -> float:
        """Seconds until it may happen; 0: now."""
        return max(0.0, self._full - self._clock() - (self._burst - 1) / self._rate)


class Arrivals:
    """Who may come now: all names that have brought no work at one pace, each of the others at a pace of its own, so
    that no flood of strangers' names keeps a worker from coming back. The loop's thread owns it.

    A name that only comes and goes has no pace of its own: a thousand of them would come a thousand times as often.

    `workers`: that the job was started for. `proven`: whether the worker of that name has ever committed.
    """

    def __init__(
        self, workers: int, proven: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proven, self._clock = proven, clock
        self._new = TokenBucket(NEW_PER_SECOND, max(FEWEST_NEW, 2 * workers), clock)
        # A bucket that is full again is forgotten: it says nothing.
        self._known: dict[str, TokenBucket] = {}
        self._sweep_at = clock() + AGAIN / AGAIN_PER_SECOND

    def __len__(self) -> int:
        """Names of which something is kept."""
        return len(self._known)

    def may(self, name: str) -> bool:
        if self._proven(name):
            known = self._known.get(name)
            return known is None or known.wait() == 0
        return self._new.wait() == 0

    def came(self, name: str) -> None:
        if not self._proven(name):
            self._new.spend()
            return
        self._sweep()
        if name not in self._known:
            self._known[name] = TokenBucket(AGAIN_PER_SECOND, AGAIN, self._clock)
        self._known[name].spend()

    def _sweep(self) -> None:
        """Once in the time that an empty bucket takes to be full."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + AGAIN / AGAIN_PER_SECOND
            self._known = {name: bucket for name, bucket in self._known.items() if not bucket.full}
