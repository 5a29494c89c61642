"""The pace of what leaves log lines or costs time without being work."""

from psserver.service.net.loop import loop_time


class KeyedPace:
    """A pace for each key, a member or another: `burst` at once, then `rate` per second. The loop's thread owns it."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        # When the whole burst of a key is available again.
        self._full: dict[str, float] = {}

    def wait(self, key: str) -> float:
        """Return the seconds until the key may spend again; 0: now."""
        now = loop_time()
        return max(0.0, self._full.get(key, now) - now - (self._burst - 1) / self._rate)

    def spend(self, key: str, cost: int = 1) -> None:
        """Spend from the key's burst, beyond its end too: the wait is then longer."""
        now = loop_time()
        self._full[key] = max(self._full.get(key, now), now) + cost / self._rate

    def take(self, key: str) -> bool:
        """Spend one and return True if the pace allows it now."""
        if self.wait(key) > 0:
            return False
        self.spend(key)
        return True
