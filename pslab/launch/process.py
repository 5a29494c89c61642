"""One daemon of a local run as a child process: in a session of its own, with a log of its own."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pslab.launch.events import Exited, Mailbox, Said


class Child:
    """A started process. Everything that it prints goes to `log`; JSON objects on stdout are also `Said`.

    Its end is `Exited`, after which nothing of its process group is left.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        mailbox: Mailbox,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. Raises OSError when `command` cannot be executed."""
        self.name = name
        self.log = log
        self._mailbox = mailbox
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
        if not self.running:
            return
        # No such group: it ended just now, and `_wait` tells.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def tail(self, lines: int = 12) -> str:
        """The end of what it said to people: the log without machine-readable lines."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 65536))
            text = file.read().decode("utf-8", errors="replace")
        spoken = [line for line in text.splitlines() if line.strip() and not line.startswith('{"')]
        return "\n".join(spoken[-lines:])

    def _read(self, stdout: IO[bytes]) -> None:
        with self.log.open("ab", buffering=0) as log, stdout:
            for line in stdout:
                log.write(line)
                event = _event(line)
                if event is not None:
                    self._mailbox.put(Said(self.name, event))

    def _wait(self) -> None:
        # Not reaped yet, so the group's number cannot be taken by another process meanwhile.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        # No such group: nobody is left in it, which is what was wanted.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._reader.join()
        self._mailbox.put(Exited(self.name, code))


def _event(line: bytes) -> dict[str, object] | None:
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None  # not for us; it stands in the log
    return event if isinstance(event, dict) and "event" in event else None
