"""`subprocess.Popen` by forks of a fork server; every other command line, and most commands in a soak, by exec."""

import atexit
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.forking.server import FULL, LIGHT, Command
from tests.repetitions import SOAK

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
# Modules that need nothing but LIGHT.
_LIGHT = (
    "psserver",
    "tests.cluster.dying_server",
    "tests.cluster.numpy_worker",
)
_COMMANDS = {"ps-server": "psserver", "ps-worker": "psworker", "ps-lab": "pslab"}
# Variables that are read when modules are loaded: a command for which one of them differs is not forked.
AT_START = ("TF_", "KERAS_", "PYTHON", "GRPC_", "LD_", "XLA_", "NUMBA_")
_LATER = ("TF_CONFIG", "PYTHONUNBUFFERED", "PYTHONPATH")
# Few threads beside each other on few cores; and what the commands set before they load gRPC.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GRPC_VERBOSITY": "ERROR"}


class Forks:
    """The requester's end of a fork server. Any thread may call it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._one = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def start(self, command: Command, files: Sequence[int]) -> int:
        """The number of a new child of this process."""
        with self._one:
            # An orphan becomes the child of its nearest ancestor that is a subreaper: this process, for now.
            self._subreaper(True)
            try:
                socket.send_fds(self._channel, [command.encode()], files)
                answer = self._channel.recv(20)
            finally:
                self._subreaper(False)
        if not answer:
            raise OSError("the fork server has ended")
        return int(answer)

    def _subreaper(self, on: bool) -> None:
        if self._libc.prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


# Of this process, by the modules that they have. A process that was forked itself has one for all.
_servers: dict[Sequence[str], Forks] = {}
_pids: list[int] = []


def server_pids() -> Sequence[int]:
    """Fork servers that are children of this process; they end with it."""
    return tuple(_pids)


def use(forks: Forks) -> None:
    """For the rest of this process."""
    _servers.update({LIGHT: forks, FULL: forks})
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def _forks(modules: Sequence[str]) -> Forks:
    """The fork server that has these modules, started at the first call."""
    if modules not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kind = "LIGHT" if modules == LIGHT else "FULL"
        code = f"from tests.forking.server import {kind}, main; main({theirs.fileno()}, {kind})"
        # By exec, whatever Popen is now. What it writes would be in the way of what is asked for.
        server = _Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **_THREADS},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        # Nobody waits for it.
        server.returncode = 0
        _pids.append(server.pid)
        atexit.register(ours.close)
        _servers[modules] = Forks(ours)
    return _servers[modules]


def _started(modules: Sequence[str], command: Command, files: Sequence[int]) -> int:
    """The number of the process; 0 where the fork server has gone: somebody killed it, and exec will do."""
    try:
        return _forks(modules).start(command, files)
    except OSError:
        _servers.pop(modules, None)
        return 0


_Popen = subprocess.Popen


class ForkingPopen(_Popen):  # type: ignore[type-arg]
    """Forks `python -m MODULE ...`, `python SCRIPT.py ...`, and this project's commands."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: int, shell: bool, p2cread: int, p2cwrite: int, c2pread: int,
        c2pwrite: int, errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any,
        umask: int, start_new_session: bool, process_group: int,
    ) -> None:  # fmt: skip
        environment = os.environ if env is None else env
        pid = 0
        known = isinstance(args, list | tuple) and forkable([*map(str, args)], environment)
        if known and not (executable or preexec_fn or pass_fds or shell):
            words = _words([str(word) for word in args])
            script = "" if str(args[0]) == sys.executable else str(Path(args[0]).parent)
            folder = os.fspath(cwd or os.getcwd())
            command = Command(words, script, folder, dict(environment), start_new_session)
            light = words[0] == "-m" and words[1] in _LIGHT
            files = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
            pid = _started(LIGHT if light else FULL, command, files)
        if not pid:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid,
                umask, start_new_session, process_group,
            )  # fmt: skip
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )


def _words(args: Sequence[str]) -> list[str]:
    """What the interpreter would be given; nothing where that is unknown."""
    if Path(args[0]).parent == Path(sys.executable).parent and Path(args[0]).name in _COMMANDS:
        return ["-m", _COMMANDS[Path(args[0]).name], *args[1:]]
    if args[0] == sys.executable and (
        len(args) > 2 and args[1] == "-m" or args[1:2] and args[1].endswith(".py")
    ):
        return [*args[1:]]
    return []


def forkable(args: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork has all that this command is given."""
    sources = environment.get("PYTHONPATH", "")
    if not _words(args) or sources not in ("", str(ROOT), os.environ.get("PYTHONPATH", "")):
        return False
    ours, theirs = (
        {key: value for key, value in each.items() if key.startswith(AT_START) and key not in _LATER}
        for each in (os.environ, environment)
    )
    return ours == theirs


@contextmanager
def forking(*, in_soak: bool = False) -> Iterator[None]:
    """Commands that start meanwhile are forks; in a soak only where that is said, and not within `executing`."""
    if (SOAK and not in_soak) or _by_exec:
        yield
        return
    with mock.patch.object(subprocess, "Popen", ForkingPopen):
        yield


_by_exec: list[bool] = []


@contextmanager
def executing() -> Iterator[None]:
    """Commands that start meanwhile are no forks."""
    _by_exec.append(True)
    try:
        with mock.patch.object(subprocess, "Popen", _Popen):
            yield
    finally:
        _by_exec.pop()
