"""Where daemons of tests run: on this machine, or wherever a prefix of their commands leads."""

import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Host:
    """`name`: as its system calls it. `prefix`: what starts a command there, as the only child of that process."""

    name: str
    address: str
    prefix: Sequence[str] = ()

    def end(self, daemon: "subprocess.Popen[bytes]", seconds: float = 10.0) -> None:
        """One that was started behind `prefix`."""
        if daemon.poll() is None:
            own = psutil.Process(daemon.pid)
            for each in own.children() if self.prefix else [own]:
                each.terminate()
        try:
            daemon.wait(seconds)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def this_machine() -> Host:
    return Host(socket.gethostname().partition(".")[0], "127.0.0.1")
