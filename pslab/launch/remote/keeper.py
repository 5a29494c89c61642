"""Keeper: ``python -m pslab.launch.remote.keeper`` starts one process on this node for a launcher elsewhere.

It ends the process when the connection to the launcher ends (`protocol` has the messages). The keeper is the parent
that the process watches: if the keeper is killed, the process ends within a second. Standard library only.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final

from pslab.launch.remote import protocol
from pslab.launch.remote.spawn import ProcessGroup

# pswire.exits.ExitCode.USAGE. The keeper does not import it, to stay within the standard library.
USAGE = 2

# Bytes of one frame.
PIECE: Final = 1 << 20
# A file up to this size is sent at every change, a larger one only at the end.
SMALL: Final = 1 << 16
# Suffix of files that only grow: a job that may go back has a folder that all nodes see.
GROWING: Final = ".jsonl"
# Seconds between two scans.
EVERY: Final = 0.5

# (path, offset, content, whether the file ends there).
Send = Callable[[str, int, bytes, bool], None]


class Mirror:
    """Calls `send` with every new part of every file below `root`: a run folder that the launcher cannot see.

    It does not follow links.
    """

    def __init__(self, root: Path, send: Send) -> None:
        self._root, self._send = root, send
        # Path -> size and modification time when it was last sent.
        self._sent: dict[str, tuple[int, int]] = {}

    def send_changes(self, final: bool = False) -> None:
        """Send what has changed; with `final`, large files too, because nothing changes any more."""
        for path in self._files():
            try:
                self._send_file(path, final)
            except FileNotFoundError:
                # It was renamed or removed between the scan and the open.
                continue

    def _files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self._root):
            folders.sort()
            yield from (path for name in sorted(names) if not (path := Path(folder) / name).is_symlink())

    def _send_file(self, path: Path, final: bool) -> None:
        name = path.relative_to(self._root).as_posix()
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            size, now = facts.st_size, (facts.st_size, facts.st_mtime_ns)
            grows = path.suffix == GROWING
            if self._sent.get(name) == now or not (grows or final or size <= SMALL):
                return
            offset = self._sent[name][0] if grows and name in self._sent else 0
            file.seek(offset)
            last = False
            while not last:
                piece = file.read(min(PIECE, size - offset))
                last = offset + len(piece) >= size or not piece
                self._send(name, offset, piece, last)
                offset += len(piece)
        self._sent[name] = now


class Sender:
    """Thread-safe writer of frames to the launcher. It sends nothing more once the launcher stops reading."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A broken connection may take no bytes without reporting an error.
        os.set_blocking(descriptor, False)
        self._lock = threading.Lock()
        self.gone = threading.Event()

    def send(self, message: bytes) -> None:
        """Write the whole message, or give up when the launcher is gone."""
        view = memoryview(message)
        with self._lock:
            while view and not self.gone.is_set():
                try:
                    if select.select([], [self._descriptor], [], 1.0)[1]:
                        view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self.gone.set()


class KeptProcess:
    """The process on this node, from its start to its end."""

    def __init__(self, request: protocol.SpawnRequest, sender: Sender, stack: ExitStack) -> None:
        """Start it. `stack` removes its temporary folder, if it needs one. Raises OSError when it cannot start."""
        self._request, self._sender = request, sender
        shared = not request.folder or (Path(request.folder) / request.marker).is_file()
        if request.needs_folder and not shared:
            raise OSError(
                f"{request.folder} is not the run folder on {socket.gethostname()}: expected a folder on a shared file "
                "system that all servers see, because they write checkpoints or go on with its log"
            )
        folder = Path(request.folder)
        if not shared:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ps-keeper-")))
        self._mirror = Mirror(folder, self._send_file) if request.mirror and not shared else None
        self._group = ProcessGroup(
            request.command,
            request.environment,
            request.files,
            host=request.host,
            folder=str(folder),
            inherited={key: value for key, value in os.environ.items() if key not in request.drop},
            stderr=subprocess.PIPE,
            cwd=request.cwd or None,
        )
        self.signal = self._group.signal
        self._over = threading.Event()

    def obey(self, descriptor: int) -> None:
        """Follow control lines until they end or fail to arrive; then end the process."""
        left = b""
        while select.select([descriptor], [], [], protocol.LONGEST_SILENCE)[0]:
            part = os.read(descriptor, 4096)
            if not part:
                break
            *lines, left = (left + part).split(b"\n")
            for line in lines:
                word, _, number = line.partition(b" ")
                if word == b"signal" and number.isdigit():
                    self.signal(int(number))
        self._sender.gone.set()
        # Asked to end, a server that leads would end the job, with which others can go on.
        self.signal(signal.SIGKILL if self._request.spare else signal.SIGTERM)
        if not self._over.wait(self._request.grace):
            self.signal(signal.SIGKILL)

    def run(self) -> None:
        """Forward output and files until the process has ended, then send its exit code."""
        files = threading.Thread(target=self._forward_files, daemon=True)
        for thread in (files, threading.Thread(target=self._send_heartbeats, daemon=True)):
            thread.start()
        code = self._group.run(
            lambda line: self._sender.send(protocol.frame(protocol.STDOUT, line)),
            lambda line: self._sender.send(protocol.frame(protocol.STDERR, line)),
        )
        self._sender.send(protocol.frame_json(protocol.EXIT, code=code))
        self._over.set()
        files.join()

    def _send_heartbeats(self) -> None:
        while not self._over.wait(protocol.HERE_EVERY):
            self._sender.send(protocol.frame(protocol.ALIVE, b""))

    def _forward_files(self) -> None:
        if self._mirror is None:
            return
        while not self._over.wait(EVERY):
            self._mirror.send_changes()
        self._mirror.send_changes(final=True)

    def _send_file(self, path: str, offset: int, content: bytes, whole: bool) -> None:
        self._sender.send(protocol.file_frame(path, offset, content, whole=whole))


def _own_address() -> str:
    """Return the address at which the launcher reached this node, or the host name if unknown."""
    parts = os.environ.get("SSH_CONNECTION", "").split()
    return parts[2] if len(parts) == 4 else socket.gethostname()


def keep(line: bytes, sender: Sender) -> None:
    """Serve one request to its end."""
    with ExitStack() as stack:
        try:
            kept = KeptProcess(protocol.SpawnRequest.decode(line), sender, stack)
        except (OSError, ValueError, TypeError) as error:
            problem = str(error)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                problem = (
                    f"{error.filename} does not exist on {socket.gethostname()}: expected job modules, data and Python "
                    "at the same paths on all nodes"
                )
            sender.send(protocol.frame_json(protocol.EXIT, code=USAGE, problem=problem))
            return

        def forward(number: int, frame: FrameType | None) -> None:
            kept.signal(number)

        # A scheduler or administrator signals the keeper but means the process. The keeper ends when the process does.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, forward)
        threading.Thread(target=kept.obey, args=(sys.stdin.fileno(),), daemon=True).start()
        kept.run()


def main() -> None:
    """Run one keeper and exit with 0; the exit code of the process travels in a frame."""
    # The parent may ignore SIGCHLD, as processes of Ray may, and children inherit that.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sender = Sender(sys.stdout.fileno())
    hello = {"host": socket.gethostname(), "pid": os.getpid(), "address": _own_address()}
    sender.send(protocol.MAGIC + protocol.frame_json(protocol.HELLO, **hello))
    line = _first_line(sys.stdin.fileno())
    if line:
        keep(line, sender)
    # Do not wait for threads that are blocked on a pipe.
    os._exit(0)


def _first_line(descriptor: int) -> bytes:
    """Read exactly one line; return an empty one at end of file."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 1)
        if not part:
            return b""
        line += part
    return bytes(line)


if __name__ == "__main__":
    main()
