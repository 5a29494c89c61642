"""The launcher's handle of a process that a keeper keeps on another node."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from pslab.launch.engines.launcher import Output, Task
from pslab.launch.events import EventQueue, Exited, Unplaced
from pslab.launch.keeping import wire
from pswire.exits import ExitCode
from pswire.own_files import same_file

# Seconds from a SIGKILL that is passed on to the end of the connection itself.
LAST_RESORT = 5.0


class Pipe(Protocol):
    """Bytes to and from one keeper. `read` and `write` are called by one thread each, `kill` by any."""

    def write(self, content: bytes) -> None:
        """Raises OSError where nobody takes it."""

    def read(self) -> bytes:
        """What there is, at least a byte; nothing at the end."""

    def kill(self) -> None:
        """Give it up: `read` ends soon, and the keeper's process too. It may have ended already."""

    def close(self) -> str:
        """Once `read` has ended: how the connection did, in words; empty: as it should."""


class CommandPipe:
    """To the keeper that a command such as ssh or srun starts. What the command itself says goes to `log`."""

    def __init__(self, command: list[str], log: int) -> None:
        """Raises OSError where there is no such command."""
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # As with a local child: Ctrl-C is for the launcher.
            start_new_session=True,
        )

    def write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        self._process.stdin.flush()

    def read(self) -> bytes:
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), 1 << 18)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> str:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        try:
            code = self._process.wait(LAST_RESORT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return f"{self._name} ended with {code}" if code else ""


class KeptProcess:
    """A process on `host`. As `Process`; `arrived` is set when all that it wrote is here.

    `open` begins the connection, in a thread; it may wait for its turn, which `placed` ends, called once in any case.
    `ask` makes the request for the address where the keeper says that it was reached.
    Where no keeper answers within `wait` seconds, that is `Unplaced`.
    """

    def __init__(
        self,
        task: Task,
        host: str,
        ask: Callable[[str], wire.Request],
        open: Callable[[int], Pipe],
        log: Path,
        events: EventQueue,
        wait: float,
        placed: Callable[[], None] = lambda: None,
    ) -> None:
        """`open` is given the descriptor of the log."""
        self.name, self._host, self._task, self._ask = task.name, host, task, ask
        self._open, self._wait, self._placed = open, wait, placed
        self._output, self._events = Output(task.name, log, events), events
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pipe: Pipe | None = None
        self._killed = False
        self._code: int | None = None
        self._asking = threading.Lock()
        self._hello = False
        # Signals that came before there was a process.
        self._early: list[int] = []
        # Turns of the writing thread in which nothing came.
        self._silent = 0
        self._problem = ""
        # Of the monotonic clock: when something came.
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
        """As `Process.send`. A SIGKILL that does not arrive ends the connection, and so the process."""
        if not self.running:
            return
        with self._asking:
            if self._hello:
                self._outgoing.put(wire.signal_line(number))
            else:
                self._early.append(number)
        if number == signal.SIGKILL:
            last = threading.Timer(LAST_RESORT, self.kill)
            last.daemon = True
            last.start()

    def tail(self, lines: int = 12) -> str:
        return self._output.tail(lines)

    def kill(self) -> None:
        """End the connection; whatever is still to come is lost."""
        self._killed = True
        pipe = self._pipe
        if pipe is not None:
            pipe.kill()

    # In threads of its own

    def _live(self) -> None:
        # The wait for a turn is none for a place.
        try:
            self._pipe = self._open(self._output.fileno())
            ended = self._talk(self._pipe)
        except OSError as error:
            ended = f"{error.strerror or error}"
        if not self._hello:
            self._placed()
        self._finish(ended)

    def _talk(self, pipe: Pipe) -> str:
        """Until the connection ends; how it did, in words."""
        if self._killed:
            pipe.kill()
        late = threading.Timer(self._wait, self._late)
        late.daemon = True
        late.start()
        threading.Thread(target=self._write, args=(pipe,), daemon=True).start()
        failed = ""
        try:
            self._read(pipe)
        except Exception as error:
            # A full disk, or no words of a keeper: the run must not wait for more, nor the process go on unseen.
            why = error.strerror if isinstance(error, OSError) else None
            failed = f"what came cannot be taken: {why or f'{type(error).__name__}: {error}'}"
            pipe.kill()
        finally:
            late.cancel()
            self._outgoing.put(None)
        ended = pipe.close()
        return failed or ended

    def _late(self) -> None:
        if not self._hello:
            self._problem = f"nothing began there within {self._wait:g} s"
            self.kill()

    def _write(self, pipe: Pipe) -> None:
        # The request is the first line, however long the keeper takes to begin.
        asked = False
        while True:
            try:
                content = self._outgoing.get(timeout=wire.HERE_EVERY)
            except queue.Empty:
                if not asked:
                    continue
                content = wire.HERE
                self._silent += 1
                # Counted, for this process may have stood still itself.
                if self._hello and self._silent >= wire.SILENT_TURNS:
                    self._problem = f"nothing came from there for {self._silent * wire.HERE_EVERY:g} s"
                    self.kill()
                    return
            if content is None:
                return
            asked = True
            try:
                pipe.write(content)
            except OSError:
                # The connection is over, and `_read` finds out why.
                return

    def _read(self, pipe: Pipe) -> None:
        frames = wire.Frames()
        while part := pipe.read():
            self.heard, self._silent = time.monotonic(), 0
            for kind, payload in frames.feed(part):
                self._take(kind, payload)
        if frames.noise.strip():
            self._output.stderr(frames.noise)

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == wire.STDOUT:
            self._output.stdout(payload)
        elif kind in (wire.STDERR, wire.NOISE):
            self._output.stderr(payload)
        elif kind == wire.HELLO:
            told = json.loads(payload)
            self._begin(str(told["address"]))
            if self._hello:
                # Started again, perhaps elsewhere, it goes on with the same log.
                self._say(f"{self.name} runs on {told['host']}")
            self._placed()
        elif kind == wire.FILE:
            self._file(payload)
        elif kind == wire.EXIT:
            told = json.loads(payload)
            if "problem" in told:
                self._say(str(told["problem"]))
            self._exited(int(told["code"]))

    def _begin(self, address: str) -> None:
        try:
            request = self._ask(address)
        except ValueError as error:
            self._problem = str(error)
            self.kill()
            return
        with self._asking:
            self._outgoing.put(request.encode())
            for number in self._early:
                self._outgoing.put(wire.signal_line(number))
            self._hello = True

    def _file(self, payload: bytes) -> None:
        head, _, content = payload.partition(b"\n")
        told = json.loads(head)
        path = PurePosixPath(str(told["path"]))
        folder = self._task.folder
        if folder is None or path.is_absolute() or ".." in path.parts:
            self._say(f"{self._host} sent a file that is none of the run's: {path}")
            return
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with same_file(target) as file:
            file.seek(int(told["offset"]))
            file.write(content)
            if told["whole"]:
                file.truncate()

    def _finish(self, ended: str) -> None:
        why = self._problem or ended
        if self._code is None and not self._hello:
            words = self.tail(1)
            wanted = f"wanted {self._task.resources}"
            told = "; ".join(each for each in (why, words) if each)
            self._events.put(
                Unplaced(self.name, f"{self.name} found no place on {self._host} ({wanted}): {told}")
            )
        elif self._code is None:
            self._say(f"the connection to {self._host} was lost: {why or 'its keeper was killed'}")
        if self._code is None:
            self._exited(int(ExitCode.UNREACHABLE))
        self._output.close()
        self.arrived.set()

    def _exited(self, code: int) -> None:
        self._code = code
        self._events.put(Exited(self.name, code))

    def _say(self, sentence: str) -> None:
        """Where people look for what the process said."""
        self._output.stderr(f"ps-lab: {sentence}\n".encode())
