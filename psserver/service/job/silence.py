"""How long a server has been silent, or made no progress, while its connection stands. Pure.

A process whose connection breaks is lost at once, and a stopped one when its pings stay unanswered. A hung process
still answers pings, because other threads do that; so each server is asked now and then, and must answer in order.
"""

from dataclasses import dataclass
from typing import Final

# Seconds between two questions to a server; and the silence after which a status names it.
ASK_EVERY: Final = 1.0
NAMED_AFTER: Final = 2.0


@dataclass(slots=True)
class Silence:
    """Silence of one server. Times in seconds. `ordered`: log entries sent to it; `executed`: as it last reported."""

    ordered: int = 0
    executed: int = 0
    # When it last answered, or was first expected to; None before.
    _heard: float | None = None
    # When it last made progress, or was given new orders after executing all others.
    _moved: float = 0.0
    _asked: float = 0.0
    _read: int = 0

    def began(self, now: float) -> None:
        """Expect answers from now on."""
        self._heard = self._moved = self._asked = now

    def order(self, entries: int, now: float) -> None:
        """Record that the log up to `entries` was sent."""
        if self.executed >= self.ordered:
            self._moved = now
        self.ordered = entries

    def hear(self, executed: int, now: float, read: int = 0) -> None:
        """Record an answer. `read`: bytes of its checkpoint that it has read so far."""
        if executed > self.executed or read > self._read:
            self._moved = now
        self._read = read
        self.executed, self._heard = executed, now

    def ask(self, now: float) -> bool:
        """Return whether it is time to ask, and record the question."""
        if self._heard is None or now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        return True

    def waited(self) -> tuple[str, float] | None:
        """Return what the server has to do and since when; None before anything is expected."""
        if self._heard is None:
            return None
        if self.executed < self.ordered:
            return f"execute entry {self.executed} of the log", min(self._moved, self._heard)
        return "answer", self._heard
