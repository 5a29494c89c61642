"""What a run asks of an engine: places for its processes, and a handle of each process that it starts.

The course of a run, its verdict, display, folder and restarts are the same for all engines (`pslab.launch.run`).
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pslab.launch.events import EventQueue

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
