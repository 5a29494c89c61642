"""Where a round is played: on servers in this process, or on real processes. The attackers cannot tell."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from pswire.exits import ExitCode
from tests.attack.doors import Door, HandlerDoor, WireDoor, listing_methods
from tests.attack.scenarios import Scenario
from tests.attack.target import Line
from tests.cluster.cluster import Cluster as Processes
from tests.service.serving import PATIENCE, Cluster, Served, serving

# Known to the servers only.
SECRET = "of the servers"
# Among members that attack: where one goes without a word, honest ones wait for a third of this; seconds.
AMONG_MEMBERS = 6.0
# Kinds of memory that end with a membership, whatever streams are still to be closed.
LASTING = ("payloads", "contributions", "base versions", "optimizer")
# A server without a model of any size, and what an attack may add to it; bytes.
MOST_MEMORY = 700 * 2**20


class Stage(Protocol):
    """`hosts`: where gRPC listens; `lines`: where payloads are taken beside it; `doors`: the fastest way in."""

    hosts: Sequence[str]
    lines: Sequence[Line]
    doors: Sequence[Door]

    def end(self) -> list[str]:
        """Once the honest workers are done: what was wrong with the servers' end."""
        ...


@dataclass
class Inside:
    """Servers on threads of this process: thousands of messages a second."""

    cluster: Cluster
    doors: Sequence[Door]

    @property
    def hosts(self) -> list[str]:
        return [served.address for served in self.cluster.servers]

    @property
    def lines(self) -> list[Line]:
        sockets = [served.server.sockets for served in self.cluster.servers]
        return [Line(each.name, each.port) for each in sockets]

    def end(self) -> list[str]:
        codes = [served.ended() for served in self.cluster.servers]
        # Members among the attackers may leave before their data ended.
        fine = {ExitCode.OK, ExitCode.MISSING}
        found = [] if set(codes) <= fine else [f"the servers ended with {codes}"]
        return found + [problem for served in self.cluster.servers for problem in _wrong_account(served)]


def _wrong_account(served: Served) -> list[str]:
    """Of a server whose members have all left: nothing is held for anybody, and the parts add up."""
    picture = served.probe.host.memory_use()
    held = [part for part in picture.parts if part.member and part.kind in LASTING]
    if held:
        return [f"memory is still held after the end: {held}"]
    if (
        picture.total > picture.limit
        or sum(part.nbytes for part in picture.parts) + picture.rest != picture.total
    ):
        return [f"the account of memory is wrong: {picture}"]
    return []


@contextmanager
def inside(scenario: Scenario, out: Path) -> Iterator[Inside]:
    overrides = [*options(scenario), f"cluster.worker_timeout={worker_timeout(scenario)}"]
    with (
        listing_methods() as methods,
        serving(
            scenario.servers,
            workers=scenario.workers,
            policy=scenario.policy,
            overrides=overrides,
            out=out,
            job_secret=SECRET,
        ) as cluster,
    ):
        # The last server is started first.
        servers = [served.server for served in cluster.servers]
        doors = [
            HandlerDoor(each, server.owner) for each, server in zip(reversed(methods), servers, strict=True)
        ]
        yield Inside(cluster, doors)


@dataclass
class Outside:
    """Real ps-server processes, of which an attacker has the addresses only."""

    processes: Processes
    peak: int = 0

    @property
    def hosts(self) -> list[str]:
        return self.processes.addresses

    @property
    def doors(self) -> list[Door]:
        return [WireDoor.to(host) for host in self.hosts]

    @property
    def lines(self) -> list[Line]:
        """As any process of this machine sees them: names of Unix sockets, and listening ports."""
        found = []
        for server, host in zip(self.processes.servers, self.hosts, strict=True):
            ports = [
                c.laddr.port
                for c in psutil.Process(server.pid).net_connections("tcp")
                if c.status == "LISTEN"
            ]
            others = [port for port in ports if port != int(host.rpartition(":")[2])]
            found.append(Line(_unix_socket(server.pid), others[0] if others else 0))
        return found

    def end(self) -> list[str]:
        found = []
        for server in self.processes.servers:
            if server.running:
                self.peak = max(self.peak, _peak(server.pid))
            code = server.wait_exit()
            if code not in (ExitCode.OK, ExitCode.MISSING):
                found.append(f"{server.name} ended with {code}")
            if "Traceback" in server.errors:
                found.append(f"{server.name}: a traceback in the log: {server.errors[-2000:]}")
            if not all(character.isprintable() or character == "\n" for character in server.errors):
                found.append(f"{server.name}: control characters in the log")
        if self.peak > MOST_MEMORY:
            found.append(f"a server took {self.peak / 2**20:.0f} MiB")
        return found


@contextmanager
def outside(scenario: Scenario, out: Path) -> Iterator[Outside]:
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        processes.out = out
        given = [f"policy.name={scenario.policy}", *options(scenario)]
        flags = ["--workers", str(scenario.workers), *(f"--set={each}" for each in given)]
        processes.start_servers(
            scenario.servers, *flags, timeout=worker_timeout(scenario), PS_JOB_SECRET=SECRET
        )
        yield Outside(processes)


def worker_timeout(scenario: Scenario) -> float:
    """Seconds. Strangers are no members: nobody waits for one, and a busy machine must not lose an honest worker."""
    return AMONG_MEMBERS if scenario.company == "members" else PATIENCE


def options(scenario: Scenario) -> list[str]:
    """As --set takes them."""
    return [*scenario.knobs, "optimizer.learning_rate=0.05", "run.seed=7"]


def _unix_socket(pid: int) -> str:
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry))
        except FileNotFoundError:
            # Closed since it was listed.
            continue
    for line in Path("/proc/net/unix").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@pswire-") and f"socket:[{fields[6]}]" in inodes:
            return fields[7][1:]
    return ""


def _peak(pid: int) -> int:
    """The most resident memory so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
