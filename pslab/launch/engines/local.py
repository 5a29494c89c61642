"""Engine "local": every server and worker is a child process of this one, in a session of its own."""

import os
import signal
import threading
from pathlib import Path

from pslab.launch.engines.launcher import Launcher, Process, Task
from pslab.launch.events import EventQueue, Exited
from pslab.launch.remote.spawn import ProcessGroup
from pswire.security.settings import PERSONAL

LOOPBACK = "127.0.0.1"
# TF_CONFIG describes another cluster. The servers' secret is new for each run, and this user's identity towards
# servers that already run means nothing to a process of the run.
NOT_PASSED_ON = ("TF_CONFIG", *PERSONAL)


class LocalLauncher(Launcher):
    """Launcher on this machine. `cwd`: working directory of the processes, against which job paths are resolved."""

    remote = False
    wait = 0.0

    def __init__(self, cwd: Path | None = None) -> None:
        self._cwd = cwd

    def start(self, task: Task, log: Path, events: EventQueue) -> "Child":
        """Implement `Launcher.start`."""
        return Child(task, log, events, self._cwd)


class Child(Process):
    """A `Process` on this machine."""

    def __init__(self, task: Task, log: Path, events: EventQueue, cwd: Path | None) -> None:
        """Start it. Raises OSError when the command cannot be executed."""
        super().__init__(task.name, "", log, events)
        try:
            self._group = ProcessGroup(
                task.command,
                task.environment,
                task.files(LOOPBACK),
                host=LOOPBACK,
                folder=str(task.folder),
                inherited=inherited_environment(),
                # Standard error goes to the log without passing through this process.
                stderr=self._output.fileno(),
                cwd=cwd,
            )
        except OSError:
            self._output.close()
            raise
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def running(self) -> bool:
        return self._group.running

    def send(self, number: signal.Signals) -> None:
        """Signal its whole process group; do nothing if it has ended."""
        self._group.signal(number)

    def _run(self) -> None:
        code = self._group.run(self._output.stdout)
        self._output.close()
        self._events.put(Exited(self.name, code))


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without what belongs to another cluster."""
    passed = {key: value for key, value in os.environ.items() if key not in NOT_PASSED_ON}
    return passed | {"PYTHONUNBUFFERED": "1"}
