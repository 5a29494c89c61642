"""The launcher that all engines with nodes share: each process runs behind a keeper, at the far end of a pipe."""

import os
import secrets
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pslab.launch.engines.launcher import Launcher, Task, WantedPlace
from pslab.launch.engines.local import NOT_PASSED_ON
from pslab.launch.events import EventQueue
from pslab.launch.remote import protocol
from pslab.launch.remote.places import Node, Places
from pslab.launch.remote.process import Pipe, RemoteProcess

# Variables of this process that override those of the node, by name and by prefix.
PASSED_ON = ("PYTHONPATH",)
PREFIXES = ("TF_", "KERAS_", "XLA_", "NUMBA_", "OMP_", "OPENBLAS_", "GRPC_")
# Simultaneous attempts to reach one node: above ten, sshd drops some (MaxStartups).
AT_ONCE = 6
# Seconds without a byte after which files that are still under way are given up.
STALLED = 30.0


class RemoteLauncher(Launcher):
    """A `Launcher` whose nodes and pipes a subclass supplies. `cwd`: the same path on all nodes."""

    # Seconds from SIGTERM to SIGKILL for a process whose launcher is gone.
    grace = 5.0

    def __init__(self, cwd: Path, wait: float) -> None:
        self.wait = wait
        self._cwd = cwd
        self._places: dict[str, Node] = {}
        self._plan: Places | None = None
        self._processes: list[RemoteProcess] = []
        self._turns: defaultdict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(AT_ONCE))
        # A file in the run folder by which a keeper recognises that its node shares the folder.
        self._marker = f".ps-lab-{secrets.token_hex(8)}"
        self._marker_path: Path | None = None

    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """Connect to a keeper on the node, which may still be starting. `log`: a descriptor. Raises OSError."""
        raise NotImplementedError

    def nodes(self) -> Sequence[Node]:
        """Return the available nodes, where it is this launcher that chooses among them. Raises PlaceError."""
        raise NotImplementedError

    def reserve(self, wanted: Sequence[WantedPlace]) -> None:
        """Implement `Launcher.reserve`."""
        self._plan = Places(self.nodes(), wanted)
        self._places = self._plan.node

    def place_again(self, name: str) -> str:
        """Implement `Launcher.place_again`."""
        if self._plan is None:
            return super().place_again(name)
        if self._plan.move(name):
            return f"on {self._places[name].name}"
        return f"on {self._places[name].name}, for no other node has room"

    def start(self, task: Task, log: Path, events: EventQueue) -> RemoteProcess:
        """Implement `Launcher.start`."""
        node = self._places[task.name]
        if task.folder is not None and self._marker_path is None:
            self._mark(task.folder)

        def request(reached: str) -> protocol.SpawnRequest:
            return self._request(task, self._places[task.name].address or reached)

        def connect(log: int) -> Pipe:
            return self.pipe(node, task, log)

        process = RemoteProcess(
            task, node.name, request, connect, log, events, self.wait, self._turns[node.name]
        )
        self._processes.append(process)
        return process

    def _request(self, task: Task, address: str) -> protocol.SpawnRequest:
        return protocol.SpawnRequest(
            command=task.command,
            environment=passed_on() | dict(task.environment),
            drop=NOT_PASSED_ON,
            cwd=str(self._cwd),
            host=address,
            files=task.files(address),
            folder=str(task.folder or ""),
            marker=self._marker,
            # Server 0 writes the log, the metrics and the model.
            mirror=task.name == "server-0",
            needs_folder=task.needs_folder,
            grace=self.grace,
            spare=task.spare,
        )

    def _mark(self, folder: Path) -> None:
        self._marker_path = folder / self._marker
        self._marker_path.touch()

    def close(self) -> None:
        """Wait for files that are still arriving, then end every connection."""
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
            if self._marker_path is not None:
                self._marker_path.unlink(missing_ok=True)


def passed_on() -> dict[str, str]:
    """Return the variables of this process that processes on other nodes get too."""
    found = {
        key: value
        for key, value in os.environ.items()
        if (key in PASSED_ON or key.startswith(PREFIXES)) and key not in NOT_PASSED_ON
    }
    return found | {"PYTHONUNBUFFERED": "1"}


def keeper_command() -> list[str]:
    """Return the keeper's command, with the same Python at the same path."""
    return [sys.executable, "-m", "pslab.launch.remote.keeper"]
