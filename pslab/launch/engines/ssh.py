"""Engine "ssh": every process runs behind its own connection of the command `ssh`, with the user's configuration."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.remote.launcher import RemoteLauncher, keeper_command
from pslab.launch.remote.places import Node
from pslab.launch.remote.process import CommandPipe

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


class SshLauncher(RemoteLauncher):
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

    def nodes(self) -> Sequence[Node]:
        """Return the machines in the given order."""
        return self._hosts

    def pipe(self, node: Node, task: Task, log: int) -> CommandPipe:
        """Start ssh. Its command line contains no secrets: the request follows on stdin."""
        # Lets a node find this project if it is not installed there.
        path = os.pathsep.join(
            os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each
        )
        keeper = shlex.join([*(["env", f"PYTHONPATH={path}"] if path else []), *keeper_command()])
        limit = f"ConnectTimeout={max(1, int(self.wait))}"
        machine = node.name.replace("[", "").replace("]", "")
        return CommandPipe(["ssh", *OPTIONS, "-o", limit, machine, "--", f"exec {keeper}"], log)


def parse(text: str) -> Node:
    """Parse ``NAME``, ``USER@NAME`` or ``[IPV6]``, and ``:N`` for N workers instead of one. Raises EngineError."""
    found = _HOST.fullmatch(text.strip())
    if found is None:
        raise EngineError(f"engine ssh: expected a machine such as h1, user@h1 or h1:4, got {text!r}")
    return Node(found["name"], workers=int(found["workers"] or 1))
