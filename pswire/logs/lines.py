"""The log of a daemon on standard error: what it prints is escaped and bounded, and what repeats itself is counted.

Half of what a log says was said by somebody else: names, reasons, errors. None of it reaches a terminal as it is,
and no peer can fill a disk by making the same line come true again and again.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from pswire.logs.texts import escaped

# Lines from one place of the code that are printed within `PERIOD` seconds; the others are counted.
BURST: Final = 50
PERIOD: Final = 10.0
# Characters of a line, and lines of a record: a traceback has some.
LONGEST: Final = 4000
MOST_LINES: Final = 100


@dataclass(slots=True)
class _Place:
    """Of lines from one place: since when they are counted, how many came, and the newest that was left out."""

    since: float
    came: int = 0
    newest: logging.LogRecord | None = None


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Prints up to `burst` records of one place in the code in `period` seconds, then counts.

    The number is printed with the next record after the period, or at the end. The handler's own lock owns
    everything here. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        burst: int = BURST,
        period: float = PERIOD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream)
        self._burst, self._period, self._clock = burst, period, clock
        self._places: dict[tuple[str, int], _Place] = {}
        self._looked = clock()

    def format(self, record: logging.LogRecord) -> str:
        """Every further line is indented, so that none looks like a record of its own."""
        lines = super().format(record).split("\n")
        if len(lines) > MOST_LINES:
            # The end of a traceback says what it was.
            cut = [f"... ({len(lines) - MOST_LINES} lines)"]
            lines = [*lines[: MOST_LINES // 2], *cut, *lines[-MOST_LINES // 2 :]]
        return "\n    ".join(escaped(line, LONGEST) for line in lines)

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if now - self._looked >= self._period:
            self._tell(now)
        key = record.pathname, record.lineno
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(now)
        place.came += 1
        if place.came <= self._burst:
            super().emit(record)
        else:
            if place.newest is None:
                more = f"(lines like the one before are counted from now on, for {self._period:g} s)"
                super().emit(_line(record, more))
            place.newest = record

    def _tell(self, now: float) -> None:
        """Print what was counted, of the places whose period is over."""
        self._looked = now
        for key, place in list(self._places.items()):
            if now - place.since < self._period:
                continue
            del self._places[key]
            if place.newest is not None:
                left = place.came - self._burst
                text = f"({left} more like this one) {place.newest.getMessage()}"
                super().emit(_line(place.newest, text))

    def close(self) -> None:
        """What was counted is printed."""
        self.acquire()
        try:
            self._tell(float("inf"))
        finally:
            self.release()
        super().close()


def _line(record: logging.LogRecord, text: str) -> logging.LogRecord:
    """Another record of the same place and event, without its traceback."""
    made = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
    # What `pswire.logs.events.event` put there, where it did.
    vars(made).update({key: value for key, value in vars(record).items() if key in ("event", "fields")})
    return made
