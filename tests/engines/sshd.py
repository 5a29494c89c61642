"""A real sshd for tests, on loopback, with keys of its own; hosts h0, h1, ... are names for it in a configuration.

The command `ssh` that is found first is a script that adds this configuration; nothing of the user's is changed.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# Seconds until it listens.
BEGIN = 20.0


def missing() -> str | None:
    """Why there are no tests with sshd here, in one line; None: there are."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "no sshd, ssh or ssh-keygen: apt-get install openssh-server openssh-client"
    return None if os.geteuid() == 0 else "sshd needs root, for its folder of privilege separation"


@dataclass(frozen=True)
class Sshd:
    """A running one. `environment`: for commands that are to find its hosts; `pid`: of the daemon."""

    environment: dict[str, str]
    pid: int


@contextmanager
def serving(folder: Path) -> Iterator[Sshd]:
    """Until the end of the block."""
    folder.mkdir()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=30)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (folder / "ssh_config").write_text(
        f"Host h*\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
    )
    commands = folder / "bin"
    commands.mkdir()
    (commands / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (commands / "ssh").chmod(0o755)
    # The folder that Debian's package makes when its service begins.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        daemon = [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]
        process = subprocess.Popen(daemon, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until_listening(port, process, folder / "log")
        yield Sshd(environment, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _until_listening(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + BEGIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            # Until it listens, there is nothing to wait on.
            subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(f"sshd did not begin: {log.read_text()}")
