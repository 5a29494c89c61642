"""What runs on a node of Ray: the other end of a pipe to a keeper (`pslab.launch.keeping.keeper`), which owns the
process. Standard library only.

An actor that is killed cannot end its children; the keeper notices that its standard input ends, and does. It also is
the parent that a process can wait for: a worker process of Ray may ignore SIGCHLD.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

# Bytes that wait to be fetched, at most: then the process waits to write.
MOST = 1 << 22
PIECE = 1 << 18
# Seconds between looks at the node's agent.
PERIOD = 0.5


class KeeperActor:
    """One keeper. Its methods are called by several threads at once."""

    def __init__(
        self, command: Sequence[str] = (sys.executable, "-m", "pslab.launch.keeping.keeper")
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._over = False
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def write(self, content: bytes) -> bool:
        """False once the keeper takes no more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(content)
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def read(self, patience: float) -> bytes | None:
        """What there is; None when nothing came within `patience` seconds; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over, patience)
            if not self._waiting and not self._over:
                return None
            found = bytes(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
            return found

    def _listen(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while part := os.read(descriptor, PIECE):
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) < MOST)
                self._waiting += part
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _end_with(raylet: int) -> None:
    """End this process when the raylet is gone, which started it: to Ray this node is lost then, and what was kept here
    is started elsewhere; Ray's own processes have been seen to stay for more than half a minute."""
    pause = threading.Event()
    while os.getppid() == raylet:
        pause.wait(PERIOD)
    os._exit(1)
