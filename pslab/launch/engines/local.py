"""Engine "local": every server and worker as a child process of this one, in a session of its own."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pslab.launch.engines.launcher import Output, Task, Wanted
from pslab.launch.events import EventQueue, Exited
from pslab.launch.keeping import blanks
from pslab.launch.keeping.files import MemoryFiles
from pswire.security.settings import PERSONAL

LOOPBACK = "127.0.0.1"
# A cluster that TF_CONFIG describes is another one; the servers' secret is new for each run, and who this process is to
# servers that run already is nothing to a process of the run.
NOT_PASSED_ON = ("TF_CONFIG", *PERSONAL)


class LocalLauncher:
    """Everything on this machine. `cwd`: where the processes run, and so where a job module's path begins."""

    remote = False
    wait = 0.0

    def __init__(self, cwd: Path | None = None) -> None:
        self._cwd = cwd

    def reserve(self, wanted: Sequence[Wanted]) -> None:
        """There is always room: nothing is reserved."""

    def start(self, task: Task, log: Path, events: EventQueue) -> "Child":
        """As `Launcher.start`."""
        with MemoryFiles(task.files_at(LOOPBACK)) as files:
            known = blanks.values(os.getpid(), LOOPBACK, str(task.folder), files.paths)
            command = blanks.filled_all(task.command, known)
            variables = environment() | blanks.filled_values(task.environment, known)
            return Child(task.name, command, log, events, self._cwd, variables, files.descriptors)

    def close(self) -> None:
        """The run has ended its processes, and nothing else is here."""


class Child:
    """A started process. Everything that it prints goes to `log`; JSON objects on stdout are also `Printed`.

    Its end is `Exited`, after which nothing of its process group is left. Any thread may call it. `_reaping` keeps the
    process's number its own while a signal is sent.
    """

    host = ""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        events: EventQueue,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start it; it inherits `descriptors`. Raises OSError when `command` cannot be executed."""
        self.name = name
        self._output = Output(name, log, events)
        self._events = events
        self._reaping = threading.Lock()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # It goes there without passing through this process.
                stderr=self._output.fileno(),
                cwd=cwd,
                env=environment,
                pass_fds=descriptors,
                # A Ctrl-C on the terminal reaches only this process, which then ends its children in order.
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Signal its whole process group; nothing happens when it has ended."""
        with self._reaping:
            # No such group: it ended just now, and `_wait` reports it.
            with suppress(ProcessLookupError):
                if self.running:
                    os.killpg(self.pid, number)

    def tail(self, lines: int = 12) -> str:
        """The end of what it printed for people: the log without machine-readable lines."""
        return self._output.tail(lines)

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            for line in stdout:
                self._output.stdout(line)

    def _wait(self) -> None:
        # Not reaped yet, so the group's number cannot be taken by another process meanwhile.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        # No such group: nobody is left in it, which is what was wanted.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with self._reaping:
            code = self._process.wait()
        self._reader.join()
        self._output.close()
        self._events.put(Exited(self.name, code))


def environment() -> dict[str, str]:
    """This process's environment, without what is meant for another cluster."""
    passed = {key: value for key, value in os.environ.items() if key not in NOT_PASSED_ON}
    return passed | {"PYTHONUNBUFFERED": "1"}
