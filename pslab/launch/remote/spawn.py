"""Start one process on this node: placeholders to fill in, files in memory, and a process group to end.

Loaded on every node, so standard library only.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Final

# Placeholders in a command line or environment, for values that only the node knows. Each begins with NUL, which no
# command line can contain, so text that a user wrote is never mistaken for one.
# The process id of the parent.
PARENT: Final = "\0parent;"
# The interface of the node to listen on.
BIND: Final = "\0bind;"
# The same as an address, with port 0.
OWN: Final = "\0own;"
# The path of the run folder on the node.
FOLDER: Final = "\0folder;"


def file(name: str) -> str:
    """Return the placeholder for the path of one of the task's files."""
    return f"\0file {name};"


def placeholder_values(parent: int, host: str, folder: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each placeholder. `files`: paths by name."""
    own = f"[{host}]:0" if ":" in host else f"{host}:0"
    known = {PARENT: str(parent), BIND: host, OWN: own, FOLDER: folder}
    return known | {file(name): path for name, path in files.items()}


def fill(text: str, known: Mapping[str, str]) -> str:
    """Replace all placeholders in `text`."""
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text


class MemoryFiles:
    """Files of one process, secrets among them, that exist in memory only.

    Start the process inside the `with` block and pass it `descriptors`. The files disappear with the process, however
    it ends; nothing is written to a disk.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._open: dict[str, int] = {}
        for name, content in files.items():
            descriptor = os.memfd_create(name)
            self._open[name] = descriptor
            os.fchmod(descriptor, 0o600)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)

    @property
    def descriptors(self) -> Sequence[int]:
        return tuple(self._open.values())

    @property
    def paths(self) -> dict[str, str]:
        """Path of each file inside the process that inherits the descriptors. Every open starts at offset 0."""
        return {name: f"/proc/self/fd/{descriptor}" for name, descriptor in self._open.items()}

    def __enter__(self) -> "MemoryFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


class ProcessGroup:
    """A process in a session of its own, with everything that it starts there.

    `signal` may be called by any thread, `wait` by one. A lock around reaping keeps the process id from being reused
    while a signal is sent.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stderr: int,
        cwd: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start `command` with `stderr` as in `subprocess.Popen`. Raises OSError when it cannot be executed."""
        self._reaping = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            env=environment,
            pass_fds=descriptors,
            # Ctrl-C on the terminal reaches the launcher only, which ends its processes in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not been reaped yet."""
        return self._process.returncode is None

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """Requires that the group was started with ``stderr=subprocess.PIPE``."""
        assert self._process.stderr is not None
        return self._process.stderr

    def signal(self, number: int) -> None:
        """Signal the whole group; do nothing if the process has ended."""
        # ProcessLookupError: the group ended just now, and `wait` reports it.
        with self._reaping, suppress(ProcessLookupError):
            if self.running:
                os.killpg(self.pid, number)

    def wait(self) -> int:
        """Wait for the process, kill what is left of its group, and return its `Popen.returncode`."""
        # The process is not reaped yet, so no other process can get the group's number meanwhile.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with self._reaping:
            return self._process.wait()


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, bytes],
    *,
    host: str,
    folder: str,
    inherited: Mapping[str, str],
    stderr: int,
    cwd: str | os.PathLike[str] | None,
) -> ProcessGroup:
    """Fill in the placeholders and start a child of this process. `environment` is added to `inherited`.

    Raises OSError when the command cannot be executed.
    """
    with MemoryFiles(files) as memory:
        known = placeholder_values(os.getpid(), host, folder, memory.paths)
        return ProcessGroup(
            [fill(word, known) for word in command],
            stderr=stderr,
            cwd=cwd,
            environment={**inherited, **{name: fill(value, known) for name, value in environment.items()}},
            descriptors=memory.descriptors,
        )
