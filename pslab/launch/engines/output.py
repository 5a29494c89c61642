"""What a process of a run prints: bytes in its log, JSON objects on stdout as events."""

import json
import os
from contextlib import suppress
from pathlib import Path

from pslab.launch.events import EventQueue, Printed
from pswire.logs.events import spoken
from pswire.own_files import same_file


class Output:
    """Of one process, in one log. Appends, so that the process's own writes to the same file come between."""

    def __init__(self, name: str, log: Path, events: EventQueue) -> None:
        self.name, self.log = name, log
        self._events = events
        # Unbuffered: whoever reads the log sees what was printed.
        self._file = same_file(log, os.O_APPEND, buffering=0)

    def fileno(self) -> int:
        """For a process that writes its standard error here by itself."""
        return self._file.fileno()

    def stdout(self, line: bytes) -> None:
        """A whole line, with its end."""
        self._write(line)
        event = _event(line)
        if event is not None:
            self._events.put(Printed(self.name, event))

    def stderr(self, part: bytes) -> None:
        """Any part of what was written."""
        self._write(part)

    def _write(self, part: bytes) -> None:
        # A full disk takes no log. What the process tells counts all the same, and so does its end.
        with suppress(OSError):
            self._file.write(part)

    def close(self) -> None:
        """Nothing is written any more; `tail` still reads."""
        self._file.close()

    def tail(self, lines: int = 12) -> str:
        """The end of what it printed for people: the log without machine-readable lines."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 65536))
            text = file.read().decode("utf-8", errors="replace")
        said = (spoken(line) for line in text.splitlines() if line.strip())
        printed = [line for part in said for line in part.splitlines() if not line.startswith('{"')]
        return "\n".join(printed[-lines:])


def _event(line: bytes) -> dict[str, object] | None:
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None  # not an event; it stays in the log
    return event if isinstance(event, dict) and "event" in event else None
