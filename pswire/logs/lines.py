"""A handler for logs on standard error: escapes and bounds what it prints, and counts repetitions.

Names, reasons and errors in a log come from other parties. None of them reaches a terminal unescaped, and no peer can
fill a disk by provoking the same line again and again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from pswire import running

# Lines from one place in the code that are printed within `PERIOD` seconds; further ones are counted.
BURST: Final = 50
PERIOD: Final = 10.0
# Characters per line, and lines per record, which may be a traceback.
LONGEST: Final = 4000
MAX_LINES: Final = 100
# Enough for a sentence that names a few things.
USUAL: Final = 500


def escaped(text: str, most: int = USUAL) -> str:
    r"""Return `text` with unprintable characters written as in Python ("\x1b", "\n", "\u202e").

    Keeps at most `most` characters, and then says how many were left out.
    """
    kept = text[:most]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)[:most]
    return kept if len(text) <= most else f"{kept} ... ({len(text) - most} more characters)"


def escaped_lines(text: str) -> str:
    """Return `text` with each line as `escaped` writes it, uncut."""
    if text.isprintable():
        return text
    # The longest way to write one character has ten.
    return "\n".join(escaped(line, 10 * len(line)) for line in text.split("\n"))


@dataclass(slots=True)
class _Place:
    """The records from one place: start of the period, their number, and the newest that was not printed."""

    since: float
    count: int = 0
    newest: logging.LogRecord | None = None


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Prints up to `burst` records from one place in the code per `period` seconds, then counts.

    The count is printed with the next record after the period, or at the end. The handler's own lock guards all
    fields. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        burst: int = BURST,
        period: float = PERIOD,
        clock: Callable[[], float] = running.now,
    ) -> None:
        super().__init__(stream)
        self._burst, self._period, self._clock = burst, period, clock
        self._places: dict[tuple[str, int], _Place] = {}
        self._looked = clock()

    def format(self, record: logging.LogRecord) -> str:
        """Indent all lines but the first, so that none looks like a record of its own."""
        lines = super().format(record).split("\n")
        if len(lines) > MAX_LINES:
            # Keep both ends: the end of a traceback has the error.
            cut = [f"... ({len(lines) - MAX_LINES} lines)"]
            lines = [*lines[: MAX_LINES // 2], *cut, *lines[-MAX_LINES // 2 :]]
        return "\n    ".join(escaped(line, LONGEST) for line in lines)

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if now - self._looked >= self._period:
            self._tell(now)
        key = record.pathname, record.lineno
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(now)
        place.count += 1
        if place.count <= self._burst:
            super().emit(record)
        else:
            if place.newest is None:
                more = f"(lines like the one before are counted from now on, for {self._period:g} s)"
                super().emit(_line(record, more))
            place.newest = record

    def _tell(self, now: float) -> None:
        """Print the counts of all places whose period is over."""
        self._looked = now
        for key, place in list(self._places.items()):
            if now - place.since < self._period:
                continue
            del self._places[key]
            if place.newest is not None:
                left = place.count - self._burst
                text = f"({left} more like this one) {place.newest.getMessage()}"
                super().emit(_line(place.newest, text))

    def close(self) -> None:
        """Print the remaining counts, and close the handler."""
        self.acquire()
        try:
            self._tell(float("inf"))
        finally:
            self.release()
        super().close()


def _line(record: logging.LogRecord, text: str) -> logging.LogRecord:
    """Return a record of the same place and event with another text, without its traceback."""
    made = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
    # Keep what `pswire.logs.events.event` set, if anything.
    vars(made).update({key: value for key, value in vars(record).items() if key in ("event", "fields")})
    return made
