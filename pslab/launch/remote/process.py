"""The launcher's handle of a process behind a keeper on another node, and the pipe of a command such as ssh."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from pslab.launch.engines.launcher import Process, Task
from pslab.launch.events import EventQueue, Exited
from pslab.launch.remote import protocol
from pswire.exits import ExitCode
from pswire.own_files import same_file
from pswire.security.proof import FILE

# Seconds from a forwarded SIGKILL until the connection itself is ended.
LAST_RESORT = 5.0


class Pipe(Protocol):
    """A byte stream to and from one keeper. One thread calls `read`, one `write`, any thread `kill`."""

    def write(self, content: bytes) -> None:
        """Send bytes. Raises OSError when the other end does not take them."""

    def read(self) -> bytes:
        """Return at least one byte, or nothing at the end of the stream."""

    def kill(self) -> None:
        """Give the connection up: `read` ends soon, and so does the keeper's process. Safe after the end."""

    def close(self) -> str:
        """Clean up after `read` has ended. Returns what went wrong with the connection; empty for nothing."""


class CommandPipe:
    """A `Pipe` to a keeper that a command such as ssh or srun starts. The command's own messages go to `log`."""

    def __init__(self, command: Sequence[str], log: int) -> None:
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


class RemoteProcess(Process):
    """A `Process` on another node. `arrived` is set when all of its output and files are here.

    `connect` opens the pipe, in a thread that has waited for its `turn`, given a descriptor of the log. `request`
    builds the request for the address at which the keeper was reached. If no keeper answers within `wait` seconds of
    connecting, the process has found no place.
    """

    def __init__(
        self,
        task: Task,
        host: str,
        request: Callable[[str], protocol.SpawnRequest],
        connect: Callable[[int], Pipe],
        log: Path,
        events: EventQueue,
        wait: float,
        turn: threading.Semaphore,
    ) -> None:
        super().__init__(task.name, host, log, events)
        self._task, self._request, self._connect = task, request, connect
        self._wait, self._turn = wait, turn
        # Lines to the keeper after the request, and None at the end.
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pipe: Pipe | None = None
        self._killed = False
        self._code: int | None = None
        # Whether the keeper has answered and the process has its place.
        self._placed = False
        # Heartbeats sent since something last arrived.
        self._silent = 0
        self._problem = ""
        # When something last arrived, on the monotonic clock.
        self.heard = time.monotonic()
        self.arrived = threading.Event()
        threading.Thread(target=self._live, name=task.name, daemon=True).start()

    @property
    def running(self) -> bool:
        return self._code is None

    def send(self, number: signal.Signals) -> None:
        """Implement `Process.send`. If a SIGKILL has no effect, end the connection and thereby the process."""
        if not self.running:
            return
        self._outgoing.put(protocol.signal_line(number))
        if number == signal.SIGKILL:
            last = threading.Timer(LAST_RESORT, self.kill)
            last.daemon = True
            last.start()

    def kill(self) -> None:
        """End the connection and lose what is still under way."""
        self._killed = True
        pipe = self._pipe
        if pipe is not None:
            pipe.kill()

    # In threads of its own

    def _live(self) -> None:
        # Waiting for a turn to connect does not count as waiting for a place.
        self._turn.acquire()
        try:
            self._pipe = self._connect(self._output.fileno())
            ended = self._talk(self._pipe)
        except OSError as error:
            ended = f"{error.strerror or error}"
        if not self._placed:
            self._turn.release()
        self._finish(ended)

    def _talk(self, pipe: Pipe) -> str:
        """Exchange messages until the connection ends; return what went wrong with it."""
        if self._killed:
            pipe.kill()
        timeout = threading.Timer(self._wait, self._give_up_waiting)
        timeout.daemon = True
        timeout.start()
        failed = ""
        try:
            self._read(pipe)
        except Exception as error:
            # A full disk, or bytes that no keeper sends. The run must not wait for more, and the process must not go
            # on unwatched.
            why = error.strerror if isinstance(error, OSError) else None
            failed = f"its output cannot be processed: {why or f'{type(error).__name__}: {error}'}"
            pipe.kill()
        finally:
            timeout.cancel()
            self._outgoing.put(None)
        ended = pipe.close()
        return failed or ended

    def _give_up_waiting(self) -> None:
        if not self._placed:
            self._problem = f"no keeper answered within {self._wait:g} s"
            self.kill()

    def _write(self, pipe: Pipe, content: bytes | None) -> None:
        """Send the request, `content`, then every outgoing line, and heartbeats between them."""
        while content is not None:
            try:
                pipe.write(content)
            except OSError:
                # The connection is over; `_read` finds out why.
                return
            try:
                content = self._outgoing.get(timeout=protocol.HERE_EVERY)
            except queue.Empty:
                content = protocol.HERE
                self._silent += 1
                # Turns are counted instead of seconds, because this process may have been suspended itself.
                if self._silent >= protocol.SILENT_TURNS:
                    self._problem = f"the node has been silent for {self._silent * protocol.HERE_EVERY:g} s"
                    self.kill()
                    return

    def _read(self, pipe: Pipe) -> None:
        frames = protocol.Frames()
        while part := pipe.read():
            self.heard, self._silent = time.monotonic(), 0
            for kind, payload in frames.feed(part):
                self._receive(pipe, kind, payload)
        if frames.noise.strip():
            self._output.stderr(frames.noise)

    def _receive(self, pipe: Pipe, kind: bytes, payload: bytes) -> None:
        if kind == protocol.STDOUT:
            self._output.stdout(payload)
        elif kind in (protocol.STDERR, protocol.NOISE):
            self._output.stderr(payload)
        elif kind == protocol.HELLO:
            self._ask(pipe, json.loads(payload))
        elif kind == protocol.FILE:
            self._write_file(payload)
        elif kind == protocol.EXIT:
            end = json.loads(payload)
            if "problem" in end:
                self._log(str(end["problem"]))
            self._exited(int(end["code"]))

    def _ask(self, pipe: Pipe, hello: Mapping[str, object]) -> None:
        """Ask the keeper, which has just answered, for the process. Signals that were sent before come after this."""
        try:
            request = self._request(str(hello["address"]))
        except ValueError as error:
            self._problem = str(error)
            self.kill()
            return
        self._placed = True
        self._turn.release()
        # A restarted process, perhaps on another node, appends to the same log.
        self._log(f"{self.name} runs on {hello['host']}")
        threading.Thread(target=self._write, args=(pipe, request.encode()), daemon=True).start()

    def _write_file(self, payload: bytes) -> None:
        head, _, content = payload.partition(b"\n")
        fields = json.loads(head)
        path = PurePosixPath(str(fields["path"]))
        folder = self._task.folder
        if folder is None or path.is_absolute() or ".." in path.parts:
            self._log(f"{self.host} sent a file outside the run folder: {path}")
            return
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # The job's secret is this user's alone.
        with same_file(target, mode=0o600 if path.name == FILE else 0o666) as file:
            file.seek(int(fields["offset"]))
            file.write(content)
            if fields["whole"]:
                file.truncate()

    @property
    def _asked(self) -> str:
        resources = str(self._task.resources)
        return f", where it asked for {resources}" if resources else ""

    def _finish(self, ended: str) -> None:
        why = self._problem or ended
        if self._code is None and not self._placed:
            details = "; ".join(part for part in (why, self.tail(1)) if part)
            reason = f"{self.name} found no place on {self.host}{self._asked}: {details}"
            self._exited(int(ExitCode.UNREACHABLE), lost=True, unplaced=reason)
        elif self._code is None:
            self._log(f"the connection to {self.host} was lost: {why or 'its keeper was killed'}")
            self._exited(int(ExitCode.UNREACHABLE), lost=True)
        self._output.close()
        self.arrived.set()

    def _exited(self, code: int, *, lost: bool = False, unplaced: str = "") -> None:
        self._code = code
        self._events.put(Exited(self.name, code, lost, unplaced))

    def _log(self, sentence: str) -> None:
        """Append a sentence of the launcher to the process's log."""
        self._output.stderr(f"ps-lab: {sentence}\n".encode())
