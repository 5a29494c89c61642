"""One daemon of a local run as a child process, in a session of its own and with its own log; and the events of a run.

Threads and signal handlers of a local run do nothing but put events into its one queue.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from pswire.logs.events import spoken
from pswire.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Printed:
    """A process printed one JSON object on its standard output."""

    name: str
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended. `code` as `Popen.returncode`: negative for a signal."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The coordinator's status, as it just answered."""

    status: pb.StatusReply


@dataclass(frozen=True, slots=True)
class StatusFailure:
    """The coordinator could not be asked for its status."""

    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process was asked to stop."""

    signal: int


Event = Printed | Exited | StatusAnswer | StatusFailure | Signalled
# SimpleQueue: its put is safe inside a signal handler.
EventQueue = SimpleQueue[Event]


class Child:
    """A started process. Everything that it prints goes to `log`; JSON objects on stdout are also `Printed`.

    Its end is `Exited`, after which nothing of its process group is left. Any thread may call it. `_reaping` keeps the
    process's number its own while a signal is sent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        events: EventQueue,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. Raises OSError when `command` cannot be executed."""
        self.name = name
        self.log = log
        self._events = events
        self._reaping = threading.Lock()
        # Unbuffered and appending: stderr goes there without passing through this process.
        with log.open("ab", buffering=0) as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=cwd,
                env=environment,
                # A Ctrl-C on the terminal reaches only this process, which then ends its children in order.
                start_new_session=True,
            )
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
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 65536))
            text = file.read().decode("utf-8", errors="replace")
        said = (spoken(line) for line in text.splitlines() if line.strip())
        printed = [line for part in said for line in part.splitlines() if not line.startswith('{"')]
        return "\n".join(printed[-lines:])

    def _read(self, stdout: IO[bytes]) -> None:
        with self.log.open("ab", buffering=0) as log, stdout:
            for line in stdout:
                log.write(line)
                event = _event(line)
                if event is not None:
                    self._events.put(Printed(self.name, event))

    def _wait(self) -> None:
        # Not reaped yet, so the group's number cannot be taken by another process meanwhile.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        # No such group: nobody is left in it, which is what was wanted.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with self._reaping:
            code = self._process.wait()
        self._reader.join()
        self._events.put(Exited(self.name, code))


def _event(line: bytes) -> dict[str, object] | None:
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None  # not an event; it stays in the log
    return event if isinstance(event, dict) and "event" in event else None
