"""The launcher's handle of a process behind a keeper on another node."""

import json
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from pslab.launch.engines.launcher import Output, Task
from pslab.launch.events import EventQueue, Exited, Unplaced
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


class RemoteProcess:
    """A `Process` on another node. `arrived` is set when all of its output and files are here.

    `open` connects, in a thread, given a descriptor of the log; it may wait for its turn. `placed` ends that turn and
    is called exactly once. `request` builds the request for the address at which the keeper was reached. If no keeper
    answers within `wait` seconds of connecting, the process is `Unplaced`.
    """

    def __init__(
        self,
        task: Task,
        host: str,
        request: Callable[[str], protocol.Request],
        open: Callable[[int], Pipe],
        log: Path,
        events: EventQueue,
        wait: float,
        placed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self._host, self._task, self._request = task.name, host, task, request
        self._open, self._wait, self._placed = open, wait, placed
        self._output, self._events = Output(task.name, log, events), events
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pipe: Pipe | None = None
        self._killed = False
        self._code: int | None = None
        # Guards `_requested` and `_early_signals`.
        self._lock = threading.Lock()
        self._requested = False
        # Signals sent before there was a process.
        self._early_signals: list[int] = []
        # Heartbeats sent since something last arrived.
        self._silent = 0
        self._problem = ""
        # When something last arrived, on the monotonic clock.
        self.heard = time.monotonic()
        self.arrived = threading.Event()
        threading.Thread(target=self._live, name=task.name, daemon=True).start()

    @property
    def host(self) -> str:
        return self._host

    @property
    def running(self) -> bool:
        return self._code is None

    def send(self, number: signal.Signals) -> None:
        """Implement `Process.send`. If a SIGKILL has no effect, end the connection and thereby the process."""
        if not self.running:
            return
        with self._lock:
            if self._requested:
                self._outgoing.put(protocol.signal_line(number))
            else:
                self._early_signals.append(number)
        if number == signal.SIGKILL:
            last = threading.Timer(LAST_RESORT, self.kill)
            last.daemon = True
            last.start()

    def tail(self, lines: int = 12) -> str:
        """Implement `Process.tail`."""
        return self._output.tail(lines)

    def kill(self) -> None:
        """End the connection and lose what is still under way."""
        self._killed = True
        pipe = self._pipe
        if pipe is not None:
            pipe.kill()

    # In threads of its own

    def _live(self) -> None:
        # Waiting for a turn to connect does not count as waiting for a place.
        try:
            self._pipe = self._open(self._output.fileno())
            ended = self._talk(self._pipe)
        except OSError as error:
            ended = f"{error.strerror or error}"
        if not self._requested:
            self._placed()
        self._finish(ended)

    def _talk(self, pipe: Pipe) -> str:
        """Exchange messages until the connection ends; return what went wrong with it."""
        if self._killed:
            pipe.kill()
        timeout = threading.Timer(self._wait, self._give_up_waiting)
        timeout.daemon = True
        timeout.start()
        threading.Thread(target=self._write, args=(pipe,), daemon=True).start()
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
        if not self._requested:
            self._problem = f"no keeper answered within {self._wait:g} s"
            self.kill()

    def _write(self, pipe: Pipe) -> None:
        # The request is the first line, however long the keeper takes to start.
        requested = False
        while True:
            try:
                content = self._outgoing.get(timeout=protocol.HERE_EVERY)
            except queue.Empty:
                if not requested:
                    continue
                content = protocol.HERE
                self._silent += 1
                # Turns are counted instead of seconds, because this process may have been suspended itself.
                if self._requested and self._silent >= protocol.SILENT_TURNS:
                    self._problem = f"the node has been silent for {self._silent * protocol.HERE_EVERY:g} s"
                    self.kill()
                    return
            if content is None:
                return
            requested = True
            try:
                pipe.write(content)
            except OSError:
                # The connection is over; `_read` finds out why.
                return

    def _read(self, pipe: Pipe) -> None:
        frames = protocol.Frames()
        while part := pipe.read():
            self.heard, self._silent = time.monotonic(), 0
            for kind, payload in frames.feed(part):
                self._receive(kind, payload)
        if frames.noise.strip():
            self._output.stderr(frames.noise)

    def _receive(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.STDOUT:
            self._output.stdout(payload)
        elif kind in (protocol.STDERR, protocol.NOISE):
            self._output.stderr(payload)
        elif kind == protocol.HELLO:
            hello = json.loads(payload)
            self._send_request(str(hello["address"]))
            if self._requested:
                # A restarted process, perhaps on another node, appends to the same log.
                self._log(f"{self.name} runs on {hello['host']}")
            self._placed()
        elif kind == protocol.FILE:
            self._write_file(payload)
        elif kind == protocol.EXIT:
            end = json.loads(payload)
            if "problem" in end:
                self._log(str(end["problem"]))
            self._exited(int(end["code"]))

    def _send_request(self, address: str) -> None:
        try:
            request = self._request(address)
        except ValueError as error:
            self._problem = str(error)
            self.kill()
            return
        with self._lock:
            self._outgoing.put(request.encode())
            for number in self._early_signals:
                self._outgoing.put(protocol.signal_line(number))
            self._requested = True

    def _write_file(self, payload: bytes) -> None:
        head, _, content = payload.partition(b"\n")
        fields = json.loads(head)
        path = PurePosixPath(str(fields["path"]))
        folder = self._task.folder
        if folder is None or path.is_absolute() or ".." in path.parts:
            self._log(f"{self._host} sent a file outside the run folder: {path}")
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
        if self._code is None and not self._requested:
            details = "; ".join(part for part in (why, self.tail(1)) if part)
            reason = f"{self.name} found no place on {self._host}{self._asked}: {details}"
            self._events.put(Unplaced(self.name, reason))
        elif self._code is None:
            self._log(f"the connection to {self._host} was lost: {why or 'its keeper was killed'}")
        if self._code is None:
            self._exited(int(ExitCode.UNREACHABLE), lost=True)
        self._output.close()
        self.arrived.set()

    def _exited(self, code: int, *, lost: bool = False) -> None:
        self._code = code
        self._events.put(Exited(self.name, code, lost))

    def _log(self, sentence: str) -> None:
        """Append a sentence of the launcher to the process's log."""
        self._output.stderr(f"ps-lab: {sentence}\n".encode())
