"""Catching up at a bounded rate: how fast a copy is sent, and how much the log slows down for a learner."""

from typing import Final

#: Training may use this share of what a learner executes in a second, while that is behind.
SHARE: Final = 0.75
#: Most seconds between two items.
LONGEST_DELAY: Final = 1.0


class CopyRate:
    """A copy's. `rate`: bytes in a second, at most. Times: seconds, monotonic."""

    def __init__(self, rate: float, now: float) -> None:
        if not rate > 0:
            raise ValueError(f"rate: expected more than 0 bytes in a second, got {rate}")
        self._rate, self._free_at = rate, now

    def send(self, nbytes: int, now: float) -> float:
        """Note that so much of the copy goes out; return the seconds to wait before more."""
        self._free_at = max(self._free_at, now) + nbytes / self._rate
        return self._free_at - now


class LearnerPace:
    """A learner's. Times: seconds, monotonic."""

    def __init__(self) -> None:
        self._mark: tuple[float, int, int] | None = None
        self._delay = 0.0

    def caught(self, end: int, executed: int, near: int, now: float) -> float:
        """Note how far log and learner are; return the seconds between two items that the log takes.

        Nothing while the learner is near or comes nearer by itself: only one that falls behind slows training down.
        """
        if self._mark is None or end - executed <= near:
            self._mark, self._delay = (now, end, executed), 0.0
            return 0.0
        since, first_end, first_executed = self._mark
        if now - since < 1.0:
            return self._delay
        done, grown = executed - first_executed, end - first_end
        self._mark = now, end, executed
        if done <= 0:
            self._delay = LONGEST_DELAY
        elif grown > SHARE * done or self._delay > 0:
            self._delay = min((now - since) / (SHARE * done), LONGEST_DELAY)
        return self._delay
