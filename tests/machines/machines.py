"""Machines for tests: network namespaces on one switch, with addresses, names and a link of 1 Gbit/s each.

Process numbers, IPC, shared memory and the host name are a machine's own, too: nothing but the network leads from one
to another, and the file system, which all share (but what `Machine.keeps` for itself). Only root can make them.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.cluster.cluster import PATIENCE, ROOT, Process
from tests.engines.hosts import Host

RATE = "1gbit"
# A machine's first process.
FIRST = (
    'hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && exec "$2" -ISc "$3"'
)
# It is the parent of those whose own has ended: who ends is cleared away, though nobody waits for it.
REAPS = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
# Where `ip netns` has its namespaces, and finds the files that are a namespace's own.
NAMESPACES, OWN_FILES = Path("/run/netns"), Path("/etc/netns")


class MachineError(RuntimeError):
    """A command that makes machines failed; the text has what it printed."""


def reason_against() -> str | None:
    """Why there can be no machines here; None where there can."""
    missing = [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"machines need {', '.join(missing)} (apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "machines are network namespaces, which need root"
    try:
        with Machines(1):
            return None
    except MachineError as error:
        return f"this system makes no machines: {error}"


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise MachineError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


class Machine:
    """One of them. `name` resolves to `address` on all."""

    def __init__(self, namespace: str, name: str, address: str) -> None:
        self.namespace, self.name, self.address = namespace, name, address
        self.processes: list[Remote] = []
        self._started: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Raises MachineError."""
        # It ends with whoever started it. Not by `ip netns exec`, which takes /sys/fs/cgroup away.
        inside = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "nsenter",
            f"--net={NAMESPACES / self.namespace}",
            "unshare",
            "--pid",
            "--fork",
        ]
        own = ["--kill-child=KILL", "--mount-proc", "--ipc", "--uts"]
        hosts = str(OWN_FILES / self.namespace / "hosts")
        self._started = subprocess.Popen(
            [*inside, *own, "sh", "-c", FIRST, self.name, hosts, sys.executable, REAPS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._started.stdout is not None
        said = self._started.stdout.readline()
        if said != "up\n":
            raise MachineError(f"{self.name} did not start: {said.strip()}")

    def stop(self) -> None:
        """With all its processes, at once."""
        for process in self.processes:
            process.close()
        if self._started is not None:
            self._started.kill()
            self._started.wait(PATIENCE)
            assert self._started.stdout is not None
            self._started.stdout.close()

    @property
    def host(self) -> Host:
        """For who starts daemons."""
        assert self._started is not None
        (first,) = psutil.Process(self._started.pid).children()
        own = ("--mount", "--uts", "--ipc", "--net", "--pid")
        # Whoever enters another file system's namespace stands at its root. The command ends with nsenter.
        inside = ("setpriv", "--pdeathsig", "KILL", "env", f"--chdir={ROOT}")
        prefix = ("nsenter", "--target", str(first.pid), *own, "--", *inside)
        return Host(self.name, self.address, prefix)

    def keeps(self, folder: Path) -> None:
        """What is in it from now on is this machine's own, and empty at first."""
        folder.mkdir(parents=True, exist_ok=True)
        _do(*self.host.prefix, "mount", "-t", "tmpfs", "tmpfs", str(folder))

    def python(self, label: str, log: Path, *arguments: str, **environment: str) -> "Remote":
        """`python ARGUMENTS...` there."""
        inherited = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        quiet = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        started = Remote(label, arguments, log, {**inherited, **quiet, **environment}, self.host.prefix)
        self.processes.append(started)
        return started

    def running(self) -> list[psutil.Process]:
        """Everything there, the first process and all that were started."""
        found = []
        for pid in pids_in(self.namespace):
            # It may have ended since.
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found


class Remote(Process):
    """A process of a machine. Signals are for itself, not for what started it there."""

    def send(self, number: signal.Signals) -> None:
        (there,) = psutil.Process(self.pid).children()
        there.send_signal(number)


class Machines:
    """A context manager; leaving it ends every process of the machines, and removes them."""

    def __init__(self, count: int, rate: str = RATE) -> None:
        mark = f"ps{secrets.token_hex(4)}"
        self._switch = f"{mark}s"
        self._rate = rate
        self.machines = [
            Machine(f"{mark}h{place}", f"host{place}", f"10.89.0.{place + 1}") for place in range(count)
        ]

    def __getitem__(self, place: int) -> Machine:
        return self.machines[place]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        switch = self._switch
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "bridge", "up")
        names = "".join(f"{each.address} {each.name}\n" for each in self.machines)
        for place, each in enumerate(self.machines):
            there = each.namespace
            _do("ip", "netns", "add", there)
            own = OWN_FILES / there
            own.mkdir(parents=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="ascii")
            port = f"port{place}"
            link = ("type", "veth", "peer", "name", "eth0", "netns", there)
            _do("ip", "-n", switch, "link", "add", port, *link)
            _do("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", there, "address", "add", f"{each.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", there, "link", "set", device, "up")
            for inside, device in ((there, "eth0"), (switch, port)):
                shaped = ("root", "tbf", "rate", self._rate, "burst", "1mb", "latency", "50ms")
                _do("tc", "-n", inside, "qdisc", "add", "dev", device, *shaped)
            each.start()

    def _remove(self) -> None:
        for each in self.machines:
            each.stop()
        for namespace in [each.namespace for each in self.machines] + [self._switch]:
            end_all(pids_in(namespace))
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=PATIENCE)
            shutil.rmtree(OWN_FILES / namespace, ignore_errors=True)

    def running(self) -> list[psutil.Process]:
        """On all of them."""
        return [process for each in self.machines for process in each.running()]

    def cut(self, place: int) -> None:
        """Pull the cable of a machine."""
        _do("ip", "-n", self._switch, "link", "set", f"port{place}", "down")

    def drop(self, place: int, port: int) -> None:
        """What a machine sends from that TCP port is lost from now on, also of connections that stand: a firewall."""
        there = self.machines[place].namespace
        _do("ip", "-n", there, "rule", "add", "ipproto", "tcp", "sport", str(port), "blackhole")

    def mend(self, place: int) -> None:
        """Put it back."""
        _do("ip", "-n", self._switch, "link", "set", f"port{place}", "up")


def pids_in(namespace: str) -> list[int]:
    """Processes of a machine, as numbered here."""
    found = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=PATIENCE
    )
    return [int(pid) for pid in found.stdout.split()]


def end_all(pids: Sequence[int]) -> None:
    """SIGKILL."""
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            # It has ended by itself.
            continue
