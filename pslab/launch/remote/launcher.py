"""Nodes of a run: which process goes where, and the launcher that all engines with nodes share.

Each process runs behind a keeper, at the far end of a pipe that is mostly a command such as ssh or srun.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pslab.launch.engines.launcher import PlaceError, Resources, Task, Wanted
from pslab.launch.engines.local import NOT_PASSED_ON
from pslab.launch.events import EventQueue
from pslab.launch.remote import protocol
from pslab.launch.remote.process import LAST_RESORT, Pipe, RemoteProcess

# Variables of this process that override those of the node, by name and by prefix.
PASSED_ON = ("PYTHONPATH",)
PREFIXES = ("TF_", "KERAS_", "XLA_", "NUMBA_", "OMP_", "OPENBLAS_", "GRPC_")
# Seconds without a byte after which files that are still under way are given up.
STALLED = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with room for processes.

    `address`: where the other nodes reach it. `cpus` and `workers`: capacity; None for no limit.
    """

    name: str
    address: str = ""
    cpus: int | None = None
    workers: int | None = None


@dataclass(slots=True)
class _Room:
    """A node with the processes assigned to it so far."""

    node: Node
    cpus: int = 0
    servers: int = 0
    workers: int = 0
    names: list[str] = field(default_factory=list)

    def fits(self, wanted: Wanted) -> bool:
        if wanted.spread and self.servers:
            return False
        full = self.node.workers is not None and self.workers >= self.node.workers
        if wanted.role == "worker" and full:
            return False
        return self.node.cpus is None or self.cpus + cpus_of(wanted.resources) <= self.node.cpus

    def add(self, wanted: Wanted) -> None:
        self.cpus += cpus_of(wanted.resources)
        self.names.append(wanted.name)
        if wanted.role == "server":
            self.servers += 1
        else:
            self.workers += 1

    @property
    def load(self) -> float:
        """The occupied share of the limiting capacity; without a limit, the number of processes."""
        if self.node.cpus:
            return self.cpus / self.node.cpus
        return (self.workers / self.node.workers) if self.node.workers else len(self.names)

    def __str__(self) -> str:
        free = []
        if self.node.cpus is not None:
            free.append(f"{self.node.cpus - self.cpus} of {self.node.cpus} cpus")
        if self.node.workers is not None:
            free.append(f"{self.node.workers - self.workers} of {self.node.workers} workers")
        return f"{self.node.name} {' and '.join(free) or 'any number'}"


def cpus_of(resources: Resources) -> int:
    """Return the CPUs to reserve: one if none are requested."""
    return resources.cpus or 1


def assign(nodes: Sequence[Node], wanted: Iterable[Wanted]) -> dict[str, Node]:
    """Assign a node to each process, by name.

    Servers fill one node after the other, or, spread or apart, get one each. Workers go to the node with the lowest
    load, preferring nodes without servers. Raises PlaceError.
    """
    rooms, all_wanted = [_Room(node) for node in nodes], list(wanted)
    places: dict[str, Node] = {}
    for each in all_wanted:
        free = [room for room in rooms if room.fits(each)]
        if not free:
            raise PlaceError(_refusal(each, rooms, len(all_wanted)))
        chosen = _chosen(each, free)
        chosen.add(each)
        places[each.name] = chosen.node
    return places


def _chosen(wanted: Wanted, free: Sequence[_Room]) -> _Room:
    if wanted.role == "worker":
        return min(free, key=lambda room: (room.load, room.servers))
    if wanted.apart:
        return min(free, key=lambda room: (wanted.partner in room.names, room.servers))
    return free[0]


class Places:
    """The places of a run's processes: `node` of each, and another one after a loss; `moved`: who has had another."""

    def __init__(self, nodes: Sequence[Node], wanted: Sequence[Wanted]) -> None:
        """Give each process a node. Raises PlaceError."""
        self._nodes, self._wanted = nodes, wanted
        self.node, self.moved = assign(nodes, wanted), set[str]()
        # Names of nodes that were lost, and not tried again since.
        self._lost: set[str] = set()

    def move(self, name: str) -> bool:
        """Give a process whose node was lost another one with room; return whether there is one.

        Without one the process stays where it was, and lost nodes count again: any of them may be back.
        """
        self._lost.add(self.node[name].name)
        rooms = {node.name: _Room(node) for node in self._nodes if node.name not in self._lost}
        for each in self._wanted:
            room = rooms.get(self.node[each.name].name)
            if room is not None:
                room.add(each)
        wanted = next(each for each in self._wanted if each.name == name)
        free = [room for room in rooms.values() if room.fits(wanted)]
        if not free:
            self._lost.clear()
            return False
        self.node[name] = _chosen(wanted, free).node
        self.moved.add(name)
        return True


def _refusal(each: Wanted, rooms: Sequence[_Room], total: int) -> str:
    number = cpus_of(each.resources)
    wish = f"{number} {'cpu' if number == 1 else 'cpus'}"
    if each.spread:
        wish += " on a node without another server"
    free = ", ".join(str(room) for room in rooms) or "no node"
    return f"no room for {each.name} of {total} processes: wanted {wish}; still available: {free}"


class RemoteLauncher(ABC):
    """A `Launcher` whose nodes and pipes a subclass supplies. `cwd`: the same path on all nodes."""

    remote = True
    # Seconds from SIGTERM to SIGKILL for a process whose launcher is gone.
    grace = 5.0

    def __init__(self, cwd: Path, wait: float) -> None:
        self.wait = wait
        self._cwd = cwd
        self._places: dict[str, Node] = {}
        self._plan: Places | None = None
        self._processes: list[RemoteProcess] = []
        # A file in the run folder by which a keeper recognises that its node shares the folder.
        self._marker = f".ps-lab-{secrets.token_hex(8)}"
        self._marker_path: Path | None = None

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Return the available nodes. Raises PlaceError."""

    @abstractmethod
    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """Connect to a keeper on the node, which may still be starting. `log`: a descriptor. Raises OSError."""

    def reserve(self, wanted: Sequence[Wanted]) -> None:
        """Implement `Launcher.reserve`."""
        self._plan = Places(self.nodes(), wanted)
        self._places = self._plan.node

    def place_again(self, name: str) -> str:
        """Implement `Launcher.place_again`."""
        assert self._plan is not None
        if self._plan.move(name):
            return f"on {self._places[name].name}"
        return f"on {self._places[name].name}, for no other node has room"

    def start(self, task: Task, log: Path, events: EventQueue) -> RemoteProcess:
        """Implement `Launcher.start`."""
        node = self._places[task.name]
        if task.folder is not None and self._marker_path is None:
            self._mark(task.folder)
        turn = self._turn(node)

        def request(reached: str) -> protocol.Request:
            return self._request(task, self._places[task.name].address or reached)

        def open(log: int) -> Pipe:
            turn.acquire()
            return self.pipe(node, task, log)

        process = RemoteProcess(task, node.name, request, open, log, events, self.wait, turn.release)
        self._processes.append(process)
        return process

    def _request(self, task: Task, address: str) -> protocol.Request:
        return protocol.Request(
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
            spare=task.spare,
        )

    def _mark(self, folder: Path) -> None:
        self._marker_path = folder / self._marker
        self._marker_path.touch()

    def _turn(self, node: Node) -> threading.Semaphore:
        """Return what limits simultaneous connections to the node; by default nothing."""
        return threading.Semaphore()

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


class CommandPipe:
    """A `Pipe` to a keeper that a command such as ssh or srun starts. The command's own messages go to `log`."""

    def __init__(self, command: list[str], log: int) -> None:
        """Start the command. Raises OSError when it does not exist."""
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # As with a local child, Ctrl-C is for the launcher.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def write(self, content: bytes) -> None:
        """Implement `Pipe.write`."""
        self._stdin.write(content)
        self._stdin.flush()

    def read(self) -> bytes:
        """Implement `Pipe.read`."""
        return os.read(self._stdout.fileno(), 1 << 18)

    def kill(self) -> None:
        """Implement `Pipe.kill`."""
        with suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> str:
        """Implement `Pipe.close`."""
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()
        try:
            code = self._process.wait(LAST_RESORT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return f"{self._name} ended with {code}" if code else ""


class CommandLauncher(RemoteLauncher):
    """A launcher that starts each keeper by a command on this machine."""

    @abstractmethod
    def command(self, node: Node, task: Task) -> list[str]:
        """Return the command that starts a keeper on the node, as a child of this process."""

    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """Implement `RemoteLauncher.pipe`."""
        return CommandPipe(self.command(node, task), log)


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
