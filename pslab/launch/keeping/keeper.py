"""``python -m pslab.launch.keeping.keeper``: starts one process on this node for a launcher elsewhere, and ends it when
the connection to that launcher ends (`wire` says how they speak). Standard library only.

It is the parent that the process watches: killed, it takes the process along within a second.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from pslab.launch.keeping import blanks, wire
from pslab.launch.keeping.files import MemoryFiles
from pslab.launch.keeping.mirror import EVERY, Mirror

# As pswire.exits.ExitCode, which is not imported: it is the launcher's.
USAGE = 2
# Of stderr; what is longer is sent in parts.
LONGEST_LINE = 1 << 16
# Seconds that what is left to send may take once the launcher is gone.
LAST_WORDS = 2.0


class Sender:
    """Frames to the launcher, from any thread. Nothing more is sent once the launcher does not listen."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A connection that is cut takes nothing, and does not say so.
        os.set_blocking(descriptor, False)
        self._one = threading.Lock()
        self.gone = threading.Event()

    def send(self, message: bytes) -> None:
        view = memoryview(message)
        with self._one:
            while view and not self.gone.is_set():
                try:
                    if select.select([], [self._descriptor], [], 1.0)[1]:
                        view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self.gone.set()


class Kept:
    """The process, from its start to its end."""

    def __init__(self, request: wire.Request, sender: Sender, stack: ExitStack) -> None:
        """`stack` removes the process's own folder, where it needs one. Raises OSError where it cannot be started."""
        self._request, self._sender = request, sender
        shared = not request.folder or (Path(request.folder) / request.marker).is_file()
        if request.needs_folder and not shared:
            raise OSError(
                f"{request.folder} is not the run folder on {socket.gethostname()}: checkpoints need a folder that all "
                "servers see, on a shared file system"
            )
        folder = Path(request.folder)
        if not shared:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ps-keeper-")))
        self._mirror = Mirror(folder, self._file) if request.mirror and not shared else None
        with MemoryFiles(request.files) as files:
            known = blanks.values(os.getpid(), request.host, str(folder), files.paths)
            environment = {key: value for key, value in os.environ.items() if key not in request.drop}
            environment |= blanks.filled_values(request.environment, known)
            self._process = subprocess.Popen(
                blanks.filled_all(request.command, known),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=request.cwd or None,
                env=environment,
                pass_fds=files.descriptors,
                start_new_session=True,
            )
        self._reaping = threading.Lock()
        self._over = threading.Event()

    def signal(self, number: int) -> None:
        """To its process group; nothing happens when it has ended."""
        with self._reaping, suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    def obey(self, descriptor: int) -> None:
        """Control lines, until they end or stay out: then the process is ended."""
        left = b""
        while select.select([descriptor], [], [], wire.LONGEST_SILENCE)[0]:
            part = os.read(descriptor, 4096)
            if not part:
                break
            *lines, left = (left + part).split(b"\n")
            for line in lines:
                word, _, number = line.partition(b" ")
                if word == b"signal" and number.isdigit():
                    self.signal(int(number))
        self._sender.gone.set()
        self.signal(signal.SIGTERM)
        if not self._over.wait(self._request.grace):
            self.signal(signal.SIGKILL)

    def run(self) -> None:
        """Until it has ended, and all that it said and wrote is sent."""
        assert self._process.stdout is not None and self._process.stderr is not None
        readers = [
            threading.Thread(target=self._stdout, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._stderr, args=(self._process.stderr,), daemon=True),
        ]
        if self._mirror is not None:
            threading.Thread(target=self._look, args=(self._mirror,), daemon=True).start()
        for reader in (*readers, threading.Thread(target=self._alive, daemon=True)):
            reader.start()
        # Not reaped yet, so the group's number cannot be taken by another process meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._reaping:
            code = self._process.wait()
        self._over.set()
        for reader in readers:
            # A process that it has put out of its group may hold the pipe.
            reader.join(LAST_WORDS)
        self._sender.send(wire.frame_json(wire.EXIT, code=code))
        if self._mirror is not None:
            self._mirror.look(final=True)

    def _stdout(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._sender.send(wire.frame(wire.STDOUT, line))

    def _stderr(self, pipe: IO[bytes]) -> None:
        with pipe:
            # By lines, between which those of stdout may stand.
            while line := pipe.readline(LONGEST_LINE):
                self._sender.send(wire.frame(wire.STDERR, line))

    def _alive(self) -> None:
        while not self._over.wait(wire.HERE_EVERY):
            self._sender.send(wire.frame(wire.ALIVE, b""))

    def _look(self, mirror: Mirror) -> None:
        while not self._over.wait(EVERY):
            mirror.look()

    def _file(self, path: str, offset: int, content: bytes, whole: bool) -> None:
        self._sender.send(wire.file_frame(path, offset, content, whole=whole))


def _own_address() -> str:
    """Where the launcher has reached this node; else its name."""
    said = os.environ.get("SSH_CONNECTION", "").split()
    return said[2] if len(said) == 4 else socket.gethostname()


def keep(line: bytes, sender: Sender) -> None:
    """One request, to its end."""
    with ExitStack() as stack:
        try:
            kept = Kept(wire.Request.decode(line), sender, stack)
        except (OSError, ValueError, TypeError) as error:
            told = str(error)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                told = (
                    f"{error.filename} is not there on {socket.gethostname()}: job modules, data and Python must have "
                    "the same paths on all nodes"
                )
            sender.send(wire.frame_json(wire.EXIT, code=USAGE, problem=told))
            return

        def passed_on(number: int, frame: FrameType | None) -> None:
            kept.signal(number)

        # Of a scheduler or an administrator: they mean the process. It decides, and this one ends with it.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, passed_on)
        threading.Thread(target=kept.obey, args=(sys.stdin.fileno(),), daemon=True).start()
        kept.run()


def main() -> None:
    """Exits 0: the process's own end is told in a frame."""
    # Whoever started this may ignore it, as Ray's processes may, and a child inherits that.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sender = Sender(sys.stdout.fileno())
    told = {"host": socket.gethostname(), "pid": os.getpid(), "address": _own_address()}
    sender.send(wire.MAGIC + wire.frame_json(wire.HELLO, **told))
    line = _line(sys.stdin.fileno())
    if line:
        keep(line, sender)
    # Threads that wait for a pipe do not keep it.
    os._exit(0)


def _line(descriptor: int) -> bytes:
    """The first line, and nothing behind it; nothing where there is none."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 1)
        if not part:
            return b""
        line += part
    return bytes(line)


if __name__ == "__main__":
    main()
