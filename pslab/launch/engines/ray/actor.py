"""The two ends of a pipe to a keeper (`pslab.launch.remote.keeper`) on a node of Ray.

The actor on the node holds the keeper, which owns the process: a killed actor cannot end its children, but the keeper
notices the end of its standard input and ends the process. The keeper is also a parent that a process can watch and
that reaps it; worker processes of Ray may ignore SIGCHLD. Standard library only; the launcher's end imports Ray.
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# Bytes of one answer.
PIECE = 1 << 18
# Seconds between checks that the node's agent is alive.
PERIOD = 0.5
# Seconds that one `read` call waits; it returns as soon as there is something.
PATIENCE = 10.0


class KeeperActor:
    """An actor that holds one keeper. Several threads call its methods at once."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "pslab.launch.remote.keeper")) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()

    def write(self, content: bytes) -> bool:
        """Send bytes to the keeper; return False once it takes no more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(content)
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def read(self, patience: float) -> bytes | None:
        """Return what the keeper has sent, None if nothing came within `patience` seconds, or nothing at the end."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        return os.read(descriptor, PIECE) if select.select([descriptor], [], [], patience)[0] else None


def _exit_with(raylet: int) -> None:
    """Exit when the raylet that started this process is gone.

    Ray then considers the node lost and starts its processes elsewhere, but its own processes have been seen to live
    on for more than half a minute.
    """
    pause = threading.Event()
    while os.getppid() == raylet:
        pause.wait(PERIOD)
    os._exit(1)


class ActorPipe:
    """The launcher's end: a `pslab.launch.remote.process.Pipe`. `read` waits while the actor waits for its place."""

    def __init__(self, actor: Any) -> None:
        """`actor`: a handle of a `KeeperActor`."""
        # Imported here, so that this module can be imported without Ray.
        import ray
        from ray.exceptions import RayError

        self._ray, self._error = ray, RayError
        self._actor = actor
        self._lost = ""

    def write(self, content: bytes) -> None:
        """Implement `Pipe.write`."""
        try:
            taken = self._ray.get(self._actor.write.remote(content))
        except self._error as error:
            raise OSError(reason_of(error)) from error
        if not taken:
            raise OSError("the keeper has ended")

    def read(self) -> bytes:
        """Implement `Pipe.read`."""
        while True:
            try:
                found = self._ray.get(self._actor.read.remote(PATIENCE))
            except self._error as error:
                self._lost = reason_of(error)
                return b""
            if found is not None:
                return bytes(found)

    def kill(self) -> None:
        """Kill the actor; its keeper then ends the process."""
        with suppress(self._error, ValueError):
            self._ray.kill(self._actor)

    def close(self) -> str:
        """Implement `Pipe.close`. Frees the place for another actor."""
        self.kill()
        return self._lost


def reason_of(error: Exception) -> str:
    """Return Ray's first sentence and, for a lost actor, why it died; the other lines are about Ray itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = [f"{type(error).__name__}: {lines[0]}"] if lines else [type(error).__name__]
    return " ".join(first + [line for line in lines[1:] if line.startswith("The actor is dead because")])
