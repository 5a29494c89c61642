"""Rate limits of what leaves log lines or costs time without being work."""

from collections.abc import Callable
from typing import Final

from pswire import running

# Joins, or streams, of one name.
REJOINS_PER_SECOND: Final = 1.0
REJOIN_BURST: Final = 20


class TokenBucket:
    """A rate limit: `burst` at once, then `rate` per second. `clock`: seconds, monotonic. The loop's thread owns
    it."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = running.now) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        # When the whole burst is available again.
        self._full = clock()

    def take(self) -> bool:
        """Spend one and return True if the rate allows it now."""
        if self.wait() > 0:
            return False
        self.spend()
        return True

    def spend(self) -> None:
        """Spend one."""
        self._full = max(self._full, self._clock()) + 1 / self._rate

    @property
    def full(self) -> bool:
        """Whether the whole burst is available."""
        return self._full <= self._clock()

    def wait(self) -> float:
        """Return the seconds until the next one is allowed; 0: now."""
        return max(0.0, self._full - self._clock() - (self._burst - 1) / self._rate)


class Buckets:
    """A bucket per key. Full buckets are swept, because they carry no information. The loop's thread owns them."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = running.now) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._of: dict[str, TokenBucket] = {}
        self._sweep_at = clock() + burst / rate

    def __len__(self) -> int:
        """Return the number of keys with a bucket."""
        return len(self._of)

    def allows(self, key: str) -> bool:
        known = self._of.get(key)
        return known is None or known.wait() == 0

    def spend(self, key: str) -> None:
        """Spend one of the key's bucket."""
        self._sweep()
        if key not in self._of:
            self._of[key] = TokenBucket(self._rate, self._burst, self._clock)
        self._of[key].spend()

    def _sweep(self) -> None:
        """Drop full buckets, once in the time that an empty one takes to fill."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + self._burst / self._rate
            self._of = {key: bucket for key, bucket in self._of.items() if not bucket.full}
