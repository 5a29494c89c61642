"""Hosts joined by a switch: network namespaces with one shaped link each. Only root can make them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from benchmarks.peers.child import Place

# Seconds for one command of iproute2.
PATIENCE = 60.0
# Where `ip netns` keeps files that only one namespace sees, such as /etc/hosts.
OWN_FILES = Path("/etc/netns")
# Bytes. One segment that the kernel has not cut into packets yet: a larger bucket lets whole small messages pass
# unshaped, a smaller one makes the kernel cut each segment first.
BUCKET = 64 << 10
# Above this rate (bits per second) timers fire too rarely for that bucket to refill in time.
FAST, FAST_BUCKET = 1e9, 1 << 20
# Of the bits on the wire at an MTU of 1500: a TCP payload of 1448 in a frame of 1514 bytes.
PAYLOAD_SHARE = 1448 / 1514

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class NetworkError(RuntimeError):
    """A command that makes the network failed; the text has its output."""


@dataclass(frozen=True, slots=True)
class NetworkHost:
    """One namespace. `name` resolves to `address` in all of them."""

    namespace: str
    name: str
    address: str

    @property
    def place(self) -> Place:
        """For programs that shall run on this host."""
        return Place(self.address, ("ip", "netns", "exec", self.namespace))


def bits_per_second(rate: str) -> float:
    """Parse a rate as tc writes it, such as "100mbit". Raises ValueError."""
    digits, unit = rate[:-4], rate[-4:]
    if unit not in UNITS:
        raise ValueError(f"expected a rate such as 100mbit or 1gbit, got {rate!r}")
    return float(digits) * UNITS[unit]


def reason_against() -> str | None:
    """Say why no network can be made here; None where one can."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"links need {', '.join(missing)} (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "links are made of network namespaces, which only root can make"
    try:
        with Network(1):
            return None
    except NetworkError as error:
        return f"this system makes no network namespaces: {error}"


def run(*command: str) -> str:
    """Run a command and return its output. Raises NetworkError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Network:
    """A context manager. On exit it kills every process on its hosts and removes them.

    Each host's link is shaped by a token bucket filter (tbf) at both ends, so `rate` holds in both directions.
    """

    def __init__(self, count: int, rate: str = "1gbit") -> None:
        mark = f"ps{token_hex(4)}"
        self._switch = f"{mark}s"
        self.rate = rate
        self._bits = bits_per_second(rate)
        self.hosts = [NetworkHost(f"{mark}h{n}", f"host{n}", f"10.89.0.{n + 1}") for n in range(count)]

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

    @property
    def payload_rate(self) -> float:
        """Bytes of TCP payload per second that a link can carry in one direction."""
        return self._bits / 8 * PAYLOAD_SHARE

    def _make(self) -> None:
        switch = self._switch
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        bucket = BUCKET if self._bits <= FAST else FAST_BUCKET
        shape = ("root", "tbf", "rate", self.rate, "burst", str(bucket), "latency", "50ms")
        for place, host in enumerate(self.hosts):
            there, port = host.namespace, f"port{place}"
            run("ip", "netns", "add", there)
            (OWN_FILES / there).mkdir(parents=True)
            (OWN_FILES / there / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="ascii")
            peer = ("type", "veth", "peer", "name", "eth0", "netns", there)
            run("ip", "-n", switch, "link", "add", port, *peer)
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", there, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", there, "link", "set", device, "up")
            for namespace, device in ((there, "eth0"), (switch, port)):
                run("tc", "-n", namespace, "qdisc", "add", "dev", device, *shape)

    def _remove(self) -> None:
        for namespace in [host.namespace for host in self.hosts] + [self._switch]:
            kill_all(pids_in(namespace))
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=PATIENCE)
            shutil.rmtree(OWN_FILES / namespace, ignore_errors=True)

    def cut(self, place: int) -> None:
        """Pull the cable of a host."""
        run("ip", "-n", self._switch, "link", "set", f"port{place}", "down")

    def mend(self, place: int) -> None:
        """Plug the cable of a host in again."""
        run("ip", "-n", self._switch, "link", "set", f"port{place}", "up")

    def drop(self, place: int, port: int) -> None:
        """Lose whatever a host sends from this TCP port from now on, as a firewall does to established connections."""
        there = self.hosts[place].namespace
        run("ip", "-n", there, "rule", "add", "ipproto", "tcp", "sport", str(port), "blackhole")


def pids_in(namespace: str) -> list[int]:
    """Processes in a namespace, by their numbers in ours."""
    found = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=PATIENCE
    )
    return [int(pid) for pid in found.stdout.split()]


def kill_all(pids: Sequence[int]) -> None:
    """Send SIGKILL to all that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
