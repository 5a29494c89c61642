"""Engine "ssh": every process behind an ssh connection of its own, by the command `ssh` and its configuration."""

import os
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.engines.nodes import CommandLauncher, keeper_command
from pslab.launch.engines.placement import Node

# Logins to one machine at a time: sshd drops some of more than ten (MaxStartups).
AT_ONCE = 6
OPTIONS = (
    *("-T", "-x", "-a"),
    *("-o", "BatchMode=yes"),
    # A machine that is gone is noticed within so many seconds, times three.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    # One connection for each process: closing one ends that one.
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
# Never with a dash in front, which ssh would take for an option.
_HOST = re.compile(
    r"(?P<name>(?:\w[\w.-]*@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\]))(?::(?P<workers>[0-9]{1,5}))?"
)


class SshLauncher(CommandLauncher):
    """`hosts`: as `parse`. Raises EngineError where there is no ssh, or no host."""

    def __init__(self, cwd: Path, wait: float, hosts: Sequence[str]) -> None:
        super().__init__(cwd, wait)
        if shutil.which("ssh") is None:
            raise EngineError("engine ssh needs the command ssh, and there is none in PATH")
        if not hosts:
            raise EngineError("engine ssh: expected machines: --hosts h0,h1:4 or cluster.hosts, got none")
        self._hosts = [parse(host) for host in hosts]
        names = [host.name for host in self._hosts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EngineError(f"engine ssh: {twice} is named twice: write {twice}:N for N workers")
        self._turns = {name: threading.Semaphore(AT_ONCE) for name in names}

    def nodes(self) -> Sequence[Node]:
        """As they were named."""
        return self._hosts

    def command(self, node: Node, task: Task) -> list[str]:
        """Secrets are not among it: the request follows on stdin."""
        # Where this project is found, for a keeper that is not installed.
        path = os.pathsep.join(
            os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each
        )
        words = [*(["env", f"PYTHONPATH={path}"] if path else []), *keeper_command()]
        limit = ("-o", f"ConnectTimeout={max(1, int(self.wait))}")
        return [
            "ssh",
            *OPTIONS,
            *limit,
            node.name.replace("[", "").replace("]", ""),
            "--",
            f"exec {shlex.join(words)}",
        ]

    def _turn(self, node: Node) -> threading.Semaphore:
        return self._turns[node.name]


def parse(text: str) -> Node:
    """``NAME``, ``USER@NAME`` or ``[IPV6]``, then ``:N`` for N workers, else one. Raises EngineError."""
    found = _HOST.fullmatch(text.strip())
    if found is None:
        raise EngineError(f"engine ssh: expected a machine such as h1, user@h1 or h1:4, got {text!r}")
    return Node(found["name"], workers=int(found["workers"] or 1))
