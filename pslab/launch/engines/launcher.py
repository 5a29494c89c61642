"""Interface of an engine: places for the processes of a run, a handle of each process, and its output.

The course of a run, its verdict, display, folder and restarts are the same for all engines (`pslab.launch.run`). The
output of a process goes to its log, and JSON objects on its stdout become events.
"""

import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pslab.launch.events import EventQueue, Printed
from pswire.logs.events import spoken
from pswire.own_files import same_file

Role = Literal["server", "worker"]


class EngineError(RuntimeError):
    """An engine is unavailable or cannot do what was asked; the message says what is missing."""


class PlaceError(RuntimeError):
    """There is no room for the processes of a run; the message says what is wanted and what is available."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Requirements of one process on its node; 0 for none. `memory` in bytes."""

    cpus: int = 0
    memory: int = 0
    gpus: int = 0

    def __str__(self) -> str:
        """Return the amounts in words; empty if there are none."""
        amounts = (("cpus", self.cpus), ("bytes of memory", self.memory), ("gpus", self.gpus))
        return ", ".join(f"{number} {what}" for what, number in amounts if number)


@dataclass(frozen=True, slots=True)
class WantedPlace:
    """A place that a run needs. `spread`: no other process of the same role may be on its node; `apart`: none should,
    if there are nodes enough, and least of all `partner`."""

    name: str
    role: Role
    resources: Resources = Resources()
    spread: bool = False
    apart: bool = False
    partner: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A process to start. Words and values may contain placeholders (`pslab.launch.remote.spawn`).

    `environment`: added to that of the node. `files`: contents by name, for this process alone, given the address at
    which it listens; raises IdentityError if it can get no certificate. Secrets belong there or in `environment`, never
    in `command`. `folder`: the run folder, where the process writes; `needs_folder`: all servers must see the same one.
    `spare`: another process goes on in its place, so it dies at once when its launcher is gone.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    resources: Resources = Resources()
    files: Callable[[str], Mapping[str, bytes]] = lambda address: {}
    folder: Path | None = None
    needs_folder: bool = False
    spare: bool = False


class Output:
    """The output of one process, appended to its log, to which the process may append by itself as well."""

    def __init__(self, name: str, log: Path, events: EventQueue) -> None:
        self.name, self.log = name, log
        self._events = events
        # Unbuffered, so that readers of the log see everything at once.
        self._file = same_file(log, os.O_APPEND, buffering=0)
        # Former processes of that name wrote what is before.
        self._begin = os.fstat(self._file.fileno()).st_size

    def fileno(self) -> int:
        """Return a descriptor of the log, for a process that appends its standard error by itself."""
        return self._file.fileno()

    def stdout(self, line: bytes) -> None:
        """Append one line with its newline, and emit an event if it is one."""
        self._write(line)
        event = _event(line)
        if event is not None:
            self._events.put(Printed(self.name, event))

    def stderr(self, part: bytes) -> None:
        """Append any bytes."""
        self._write(part)

    def _write(self, part: bytes) -> None:
        # On a full disk the log is lost, but events and the end of the process still count. The file is closed for what
        # a descendant of a process that has ended still prints.
        with suppress(OSError, ValueError):
            self._file.write(part)

    def close(self) -> None:
        """Stop writing. `tail` still works."""
        self._file.close()

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of this process for people."""
        with self.log.open("rb") as file:
            file.seek(max(self._begin, self.log.stat().st_size - 65536))
            text = file.read().decode("utf-8", errors="replace")
        parts = (spoken(line) for line in text.splitlines() if line.strip())
        printed = [line for part in parts for line in part.splitlines() if not line.startswith('{"')]
        return "\n".join(printed[-lines:])


def _event(line: bytes) -> dict[str, object] | None:
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None  # Not an event; it is in the log only.
    return event if isinstance(event, dict) and "event" in event else None


class Process(ABC):
    """A handle of a process that was started. Any thread may call it.

    `host`: the name of its node; empty for this machine. Its output goes to `log`, and JSON objects on its stdout
    become `Printed` events. Its end is an `Exited` event, after which nothing that it started is left.
    """

    def __init__(self, name: str, host: str, log: Path, events: EventQueue) -> None:
        self.name, self.host = name, host
        self._output, self._events = Output(name, log, events), events

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its end is not known yet."""

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Signal the process and everything that it has started there; do nothing if it has ended."""

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of its output for people: the log without JSON events."""
        return self._output.tail(lines)


class Launcher:
    """The engine of one run.

    `remote`: processes run on other nodes, listen on the node's address, and get files instead of paths. `wait`:
    seconds that a process may wait for its place before it starts.
    """

    remote = True
    wait: float

    def reserve(self, wanted: Sequence[WantedPlace]) -> None:
        """Find places for all processes of the run. Called in its own thread. Raises PlaceError within `wait` s."""

    def start(self, task: Task, log: Path, events: EventQueue) -> Process:
        """Start a process. Raises OSError when it cannot start."""
        raise NotImplementedError

    def place_again(self, name: str) -> str:
        """Choose where a process starts next whose node was lost; return that as a part of a sentence."""
        return "where there is room"

    def close(self) -> None:
        """End what still runs on any node, and release all reservations."""
