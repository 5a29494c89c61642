"""Machines for tests: network namespaces on one switch, with addresses, names and a link of 1 Gbit/s each.

Process numbers, IPC, shared memory, the monotonic clock and the host name are a machine's own, too: nothing but the
network leads from one to another, and the file system, which all share (but what `Machine.keeps` for itself). Only root
can make them.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.cluster.cluster import PATIENCE, ROOT, Process
from tests.engines.hosts import Host
from tests.machines.network import OWN_FILES, Network, NetworkError, pids_in, run

# A machine's first process.
FIRST = (
    'hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && exec "$2" -ISc "$3"'
)
# It is the parent of those whose own has ended: who ends is cleared away, though nobody waits for it.
REAPS = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
# Seconds between when two machines began; the first one has been up for longest.
UPTIME = 100_000
# Where `ip netns` has its namespaces.
NAMESPACES = Path("/run/netns")


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
    except NetworkError as error:
        return f"this system makes no machines: {error}"


class Machine:
    """One of them. `name` resolves to `address` on all."""

    def __init__(self, namespace: str, name: str, address: str, ahead: int = 0) -> None:
        """`ahead`: seconds that its monotonic clock shows beyond this one's."""
        self.namespace, self.name, self.address, self._ahead = namespace, name, address, ahead
        self.processes: list[Remote] = []
        self._started: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Raises NetworkError."""
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
        own = ["--kill-child=KILL", "--mount-proc", "--ipc", "--uts", "--time", f"--monotonic={self._ahead}"]
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
            raise NetworkError(f"{self.name} did not start: {said.strip()}")

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
        own = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")
        # Whoever enters another file system's namespace stands at its root. The command ends with nsenter.
        inside = ("setpriv", "--pdeathsig", "KILL", "env", f"--chdir={ROOT}")
        prefix = ("nsenter", "--target", str(first.pid), *own, "--", *inside)
        return Host(self.name, self.address, prefix)

    def keeps(self, folder: Path) -> None:
        """What is in it from now on is this machine's own, and empty at first."""
        folder.mkdir(parents=True, exist_ok=True)
        run(*self.host.prefix, "mount", "-t", "tmpfs", "tmpfs", str(folder))

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


class Machines(Network):
    """A network whose hosts are machines. On exit it kills every process on them and removes them."""

    def __init__(self, count: int, rate: str = "1gbit") -> None:
        super().__init__(count, rate)
        self.machines = [
            Machine(host.namespace, host.name, host.address, UPTIME * (count - place))
            for place, host in enumerate(self.hosts)
        ]

    def __getitem__(self, place: int) -> Machine:
        return self.machines[place]

    def _make(self) -> None:
        super()._make()
        for each in self.machines:
            each.start()

    def _remove(self) -> None:
        for each in self.machines:
            each.stop()
        super()._remove()

    def running(self) -> list[psutil.Process]:
        """On all of them."""
        return [process for each in self.machines for process in each.running()]
