"""Start one process on this node: placeholders to fill in, files in memory, and a process group to end.

Loaded on every node, so standard library only.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Final

# What is given a line of output, with its newline; longer lines come in parts.
Take = Callable[[bytes], None]
# Bytes. No event is as long.
LONGEST_LINE: Final = 1 << 20
# Seconds to wait for the output after the process has ended.
DRAIN_TIMEOUT: Final = 5.0

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


@contextmanager
def memory_files(files: Mapping[str, bytes]) -> Iterator[Mapping[str, int]]:
    """Make files of one process, secrets among them, that exist in memory only; yield the descriptor of each.

    Start the process inside the `with` block and pass it the descriptors. The files disappear with the process, however
    it ends; nothing is written to a disk.
    """
    with ExitStack() as stack:
        made = {}
        for name, content in files.items():
            made[name] = os.memfd_create(name)
            stack.callback(os.close, made[name])
            os.fchmod(made[name], 0o600)
            with os.fdopen(os.dup(made[name]), "wb") as file:
                file.write(content)
        yield made


class ProcessGroup:
    """A child process in a session of its own, with everything that it starts there.

    `signal` may be called by any thread, `run` by one. A lock around reaping keeps the process id from being reused
    while a signal is sent.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        files: Mapping[str, bytes],
        *,
        host: str,
        folder: str,
        inherited: Mapping[str, str],
        stderr: int,
        cwd: str | os.PathLike[str] | None,
    ) -> None:
        """Fill in the placeholders and start the command. `environment` is added to `inherited`.

        `stderr` is as in `subprocess.Popen`. Raises OSError when the command cannot be executed.
        """
        self._reaping = threading.Lock()
        with memory_files(files) as made:
            # Every open of such a path starts at offset 0.
            paths = {name: f"/proc/self/fd/{descriptor}" for name, descriptor in made.items()}
            known = placeholder_values(os.getpid(), host, folder, paths)
            self._process = subprocess.Popen(
                [fill(word, known) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=cwd,
                env={**inherited, **{name: fill(value, known) for name, value in environment.items()}},
                pass_fds=tuple(made.values()),
                # Ctrl-C on the terminal reaches the launcher only, which ends its processes in order.
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process has not been reaped yet."""
        return self._process.returncode is None

    def signal(self, number: int) -> None:
        """Signal the whole group; do nothing if the process has ended."""
        # ProcessLookupError: the group ended just now, and `run` reports it.
        with self._reaping, suppress(ProcessLookupError):
            if self.running:
                os.killpg(self._process.pid, number)

    def run(self, stdout: Take, stderr: Take | None = None) -> int:
        """Pass lines of output on until the process has ended and nothing of its group is left.

        `stderr` needs a pipe. Returns the process's `Popen.returncode`.
        """
        readers = [
            threading.Thread(target=_pass_on, args=(pipe, take), daemon=True)
            for pipe, take in ((self._process.stdout, stdout), (self._process.stderr, stderr))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        # The process is not reaped yet, so no other process can get the group's number meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._reaping:
            code = self._process.wait()
        for reader in readers:
            # A descendant that left the process group may still hold the pipe open.
            reader.join(DRAIN_TIMEOUT)
        return code


def _pass_on(pipe: IO[bytes], take: Take) -> None:
    with pipe:
        while line := pipe.readline(LONGEST_LINE):
            take(line)
