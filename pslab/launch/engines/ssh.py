"""Engine "ssh": every process runs behind its own connection of the command `ssh`, with the user's configuration."""

import os
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.remote.launcher import CommandLauncher, Node, keeper_command

# Simultaneous logins to one machine: above ten, sshd drops some (MaxStartups).
LOGINS_AT_ONCE = 6
OPTIONS = (
    *("-T", "-x", "-a"),
    *("-o", "BatchMode=yes"),
    # Notice a lost machine within three times this many seconds.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    # No shared connection: closing one must end exactly one process.
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
# A leading dash is not allowed: ssh would take it for an option.
_HOST = re.compile(
    r"(?P<name>(?:\w[\w.-]*@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\]))(?::(?P<workers>[0-9]{1,5}))?"
)


class SshLauncher(CommandLauncher):
    """A launcher over ssh. `hosts`: each as in `parse`."""

    def __init__(self, cwd: Path, wait: float, hosts: Sequence[str]) -> None:
        """Look for ssh, and check the hosts. Raises EngineError without ssh, without hosts, or for a host that is named
        twice."""
        super().__init__(cwd, wait)
        if shutil.which("ssh") is None:
            raise EngineError("engine ssh needs the command ssh, and there is none in PATH")
        if not hosts:
            raise EngineError("engine ssh: expected --hosts h0,h1:4 or cluster.hosts, got no machines")
        self._hosts = [parse(host) for host in hosts]
        names = [host.name for host in self._hosts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EngineError(f"engine ssh: {twice} is named twice: expected {twice}:N for N workers")
        self._turns = {name: threading.Semaphore(LOGINS_AT_ONCE) for name in names}

    def nodes(self) -> Sequence[Node]:
        """Return the machines in the given order."""
        return self._hosts

    def command(self, node: Node, task: Task) -> list[str]:
        """Return the ssh command. It contains no secrets: the request follows on stdin."""
        # Lets a node find this project if it is not installed there.
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
    """Parse ``NAME``, ``USER@NAME`` or ``[IPV6]``, and ``:N`` for N workers instead of one. Raises EngineError."""
    found = _HOST.fullmatch(text.strip())
    if found is None:
        raise EngineError(f"engine ssh: expected a machine such as h1, user@h1 or h1:4, got {text!r}")
    return Node(found["name"], workers=int(found["workers"] or 1))
