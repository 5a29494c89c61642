"""What engines with nodes share: each process is kept by a keeper at the far end of a pipe, mostly some command's."""

import os
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from pslab.launch.engines.launcher import Task, Wanted
from pslab.launch.engines.local import NOT_PASSED_ON
from pslab.launch.engines.placement import Node, assign
from pslab.launch.events import EventQueue
from pslab.launch.keeping import wire
from pslab.launch.keeping.kept import CommandPipe, KeptProcess, Pipe

# What a process is to have as it is here, beside what its node says.
PASSED_ON = ("PYTHONPATH",)
PREFIXES = ("TF_", "KERAS_", "XLA_", "NUMBA_", "OMP_", "OPENBLAS_", "GRPC_")
# Seconds without a byte after which files that are still under way are given up.
STALLED = 30.0


class NodesLauncher(ABC):
    """A launcher whose nodes and commands a subclass knows. `cwd`: the same path on all nodes."""

    remote = True
    # Seconds from SIGTERM to SIGKILL for a process whose launcher is gone.
    grace = 5.0

    def __init__(self, cwd: Path, wait: float) -> None:
        self.wait = wait
        self._cwd = cwd
        self._places: dict[str, Node] = {}
        self._wanted: dict[str, Wanted] = {}
        self._processes: list[KeptProcess] = []
        # A file of the run folder that says to a keeper: this is the same one.
        self._marker = f".ps-lab-{secrets.token_hex(8)}"
        self._marked: Path | None = None

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Those that there are. Raises PlaceError."""

    @abstractmethod
    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """To a keeper there, which is not there yet perhaps. `log`: a descriptor. Raises OSError."""

    def reserve(self, wanted: Sequence[Wanted]) -> None:
        """As `Launcher.reserve`."""
        self._places = assign(self.nodes(), wanted)
        self._wanted = {each.name: each for each in wanted}

    def start(self, task: Task, log: Path, events: EventQueue) -> KeptProcess:
        """As `Launcher.start`."""
        node = self._places[task.name]
        if task.folder is not None and self._marked is None:
            self._mark(task.folder)
        done = self._turn(node)

        def ask(reached: str) -> wire.Request:
            return self._request(task, node.address or reached)

        def open(log: int) -> Pipe:
            done.acquire()
            return self.pipe(node, task, log)

        process = KeptProcess(task, node.name, ask, open, log, events, self.wait, done.release)
        self._processes.append(process)
        return process

    def _request(self, task: Task, address: str) -> wire.Request:
        return wire.Request(
            command=task.command,
            environment=passed_on() | dict(task.environment),
            drop=NOT_PASSED_ON,
            cwd=str(self._cwd),
            host=address,
            files=task.files_at(address),
            folder=str(task.folder or ""),
            marker=self._marker,
            # Server 0 writes the log, the metrics and the model.
            mirror=task.name == "server-0",
            needs_folder=task.needs_folder,
            grace=self.grace,
        )

    def _mark(self, folder: Path) -> None:
        self._marked = folder / self._marker
        self._marked.touch()

    def _turn(self, node: Node) -> threading.Semaphore:
        """Who may connect to a node now."""
        return threading.Semaphore()

    def close(self) -> None:
        """Waits for files that are under way, as long as they come."""
        try:
            for process in self._processes:
                while not process.arrived.wait(0.2) and not process.running:
                    if time.monotonic() - process.heard > STALLED:
                        break
        finally:
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.arrived.wait(STALLED)
            if self._marked is not None:
                self._marked.unlink(missing_ok=True)


class CommandLauncher(NodesLauncher):
    """Keepers are begun by a command."""

    @abstractmethod
    def command(self, node: Node, task: Task) -> list[str]:
        """That begins a keeper there, as a child of this process."""

    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """As `NodesLauncher.pipe`."""
        return CommandPipe(self.command(node, task), log)


def passed_on() -> dict[str, str]:
    """Variables of this process that those on other nodes have, too."""
    found = {
        key: value
        for key, value in os.environ.items()
        if (key in PASSED_ON or key.startswith(PREFIXES)) and key not in NOT_PASSED_ON
    }
    return found | {"PYTHONUNBUFFERED": "1"}


def keeper_command() -> list[str]:
    """The same Python, at the same path."""
    return [sys.executable, "-m", "pslab.launch.keeping.keeper"]
