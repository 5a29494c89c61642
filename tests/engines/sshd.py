"""A real sshd for tests, with keys of its own: on loopback, where h0, h1, ... are names for it in a configuration, or
one on each of tests.machines.

The command `ssh` that is found first is a script that adds this configuration; nothing of the user's is changed.
"""

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.hosts import Host
from tests.engines.ports import unclaimed
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# Seconds until it listens.
BEGIN = PATIENCE


def missing() -> str | None:
    """Why there are no tests with sshd here, in one line; None: there are."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "no sshd, ssh or ssh-keygen (apt-get install openssh-server openssh-client)"
    return None if os.geteuid() == 0 else "sshd needs root, for its folder of privilege separation"


# Every name that begins so is this machine.
LOOPBACK = Host("h*", "127.0.0.1")


@dataclass(frozen=True)
class Sshd:
    """A running one. `environment`: for commands that are to find its hosts."""

    environment: dict[str, str]


@contextmanager
def serving(folder: Path, hosts: Sequence[Host] = (LOOPBACK,)) -> Iterator[Sshd]:
    """Until the end of the block. `hosts`: a daemon on each, by the name that ssh is given."""
    folder.mkdir()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=PATIENCE)
    (port,) = unclaimed(1)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known").write_text("".join(f"[{host.address}]:{port} {kind} {key}\n" for host in hosts))
    named = "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in hosts)
    (folder / "ssh_config").write_text(
        f"{named}Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
    )
    commands = folder / "bin"
    commands.mkdir()
    (commands / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (commands / "ssh").chmod(0o755)
    # The folder that Debian's package makes when its service begins.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(_daemon(folder, host, port))
        yield Sshd(environment)


@contextmanager
def _daemon(folder: Path, host: Host, port: int) -> Iterator[None]:
    settings, said = folder / f"{host.address}.config", folder / f"{host.address}.log"
    settings.write_text(
        f"ListenAddress {host.address}:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    with said.open("wb") as log:
        daemon = [*host.prefix, str(SSHD), "-D", "-e", "-f", str(settings)]
        process = subprocess.Popen(daemon, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until_listening(process, said)
        yield
    finally:
        host.end(process)


def _until_listening(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + BEGIN
    while time.monotonic() < deadline and process.poll() is None:
        if "Server listening on" in log.read_text():
            return
        # Until it says so, there is nothing to wait on.
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(f"sshd did not begin: {log.read_text()}")
