"""What a run asks of an engine: places for its processes, a handle of each process, and what a process prints.

The course of a run, its verdict, display, folder and restarts are the same for all engines (`pslab.launch.run`). What a
process prints are bytes in its log, and JSON objects on stdout, which become events.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pslab.launch.events import EventQueue, Printed
from pswire.logs.events import spoken
from pswire.own_files import same_file

Role = Literal["server", "worker"]


class EngineError(RuntimeError):
    """An engine that cannot be had, or cannot do what was asked; the sentence says what is missing."""


class PlaceError(RuntimeError):
    """There is no room for the processes of a run: the sentence has what is wanted and what is available."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one process is to have of its node; 0: nothing is said. `memory` in bytes."""

    cpus: int = 0
    memory: int = 0
    gpus: int = 0

    def __str__(self) -> str:
        said = (("cpus", self.cpus), ("bytes of memory", self.memory), ("gpus", self.gpus))
        return ", ".join(f"{number} {what}" for what, number in said if number) or "nothing in particular"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place that a run needs. `spread`: no other one of the same role is to be on its node."""

    name: str
    role: Role
    resources: Resources = Resources()
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What to start: words and values have blanks in them (`pslab.launch.keeping.blanks`).

    `environment`: beside that of the node. `files`: by name, for this process alone (`pslab.launch.keeping.files`);
    secrets stand here or in `environment`, never in `command`. `more_files`: others, once the address is known where it
    listens. `folder`: the run folder, where the
    process writes; `needs_folder`: all servers must see the same one.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    resources: Resources = Resources()
    files: Mapping[str, bytes] = field(default_factory=dict)
    more_files: Callable[[str], Mapping[str, bytes]] = lambda address: {}
    folder: Path | None = None
    needs_folder: bool = False

    def files_at(self, address: str) -> dict[str, bytes]:
        """All of them, for a node with that address. Raises IdentityError where there is no certificate for it."""
        return {**self.files, **self.more_files(address)}


class Process(Protocol):
    """A process that was started. Any thread may call it."""

    name: str

    @property
    def host(self) -> str:
        """The name of its node; empty: this machine."""

    @property
    def running(self) -> bool:
        """Its end is not known yet."""

    def send(self, number: signal.Signals) -> None:
        """To the process and all that it has started there; nothing happens when it has ended."""

    def tail(self, lines: int = 12) -> str:
        """The end of what it printed for people."""


class Launcher(Protocol):
    """One run's engine.

    `remote`: processes have nodes of their own, where they listen on the node's address, and get files rather than
    paths. `wait`: seconds that a process may wait for its place before it begins.
    """

    remote: bool
    wait: float

    def reserve(self, wanted: Sequence[Wanted]) -> None:
        """Find places for all processes of the run, in a thread of its own. Raises PlaceError within `wait` seconds."""

    def start(self, task: Task, log: Path, events: EventQueue) -> Process:
        """Everything that the process prints goes to `log`, JSON objects on its stdout are `Printed`, its end is
        `Exited`, after which nothing that it has started is left. Raises OSError when nothing can be started here."""

    def close(self) -> None:
        """Nothing is left on any node, whatever `start` was not told the end of; reservations are given back."""


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
