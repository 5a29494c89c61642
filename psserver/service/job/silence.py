"""How long a server has been silent, or made no progress, while its connection stands. Pure.

A process whose connection breaks is lost at once, and a stopped one when its pings stay unanswered. A hung process
still answers pings, because other threads do that; so each server is asked now and then, and must answer in order.
"""

from dataclasses import dataclass
from typing import Final

# Between two questions to a server, in seconds; and what is named in a status has been silent for so long.
ASK_EVERY: Final = 1.0


NAMED_AFTER: Final = 2.0


@dataclass(slots=True)
class Silence:
    """Times in seconds. `ordered`: entries of the log that the server was sent; `executed`: as it said last."""

    ordered: int = 0
    executed: int = 0
    # When it last said anything, or was first asked to; None before that.
    _heard: float | None = None
    # When it last came nearer to what was ordered, or was ordered something behind all that it had executed.
    _moved: float = 0.0
    _asked: float = 0.0

    def began(self, now: float) -> None:
        """It is expected to answer from now on."""
        self._heard = self._moved = self._asked = now

    def order(self, entries: int, now: float) -> None:
        """It is sent the log up to so many entries."""
        if self.executed >= self.ordered:
            self._moved = now
        self.ordered = entries

    def hear(self, executed: int, now: float) -> None:
        """It says so."""
        if executed > self.executed:
            self._moved = now
        self.executed, self._heard = executed, now

    def ask(self, now: float) -> bool:
        """It is to be asked now, and is."""
        if self._heard is None or now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        return True

    def waited(self) -> tuple[str, float] | None:
        """What it is waited for to do, and since when; None before it is expected to do anything."""
        if self._heard is None:
            return None
        if self.executed < self.ordered:
            return f"execute entry {self.executed} of the log", min(self._moved, self._heard)
        return "answer", self._heard
