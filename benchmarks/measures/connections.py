"""What it costs to connect: handshakes with each port of a server, and a crowd of workers that joins. With and without
TLS in turns, against real servers."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.loads import Load
from benchmarks.measures.samples import Samples, collected
from benchmarks.peers import tls
from benchmarks.peers.child import Child
from benchmarks.peers.ours import start_servers
from pswire.addresses import parse_address
from pswire.security.files import TlsFiles

PLAIN, TLS = "plain", "TLS"
WAYS: Final = (PLAIN, TLS)
# What listens there.
KINDS: Final = {"grpc": "gRPC", "socket": "socket"}
WORKERS: Final = 100
# Workers that join at the same time: one process plays all of them.
THREADS: Final = 10
LOAD: Final = Load("joining", ((1000,),), workers=WORKERS)


@dataclass
class Connections:
    """Samples in the order of the rounds: connections per second by (kind, way), milliseconds of the server's CPU for
    each, and seconds in which WORKERS joined, by way."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    server_cpu: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    joins: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, kind: str, way: str) -> Samples:
        return collected(self.rates[kind, way])

    def cpu(self, kind: str, way: str) -> Samples:
        return collected(self.server_cpu[kind, way])

    def join(self, way: str) -> Samples:
        return collected(self.joins[way])

    def as_json(self) -> dict[str, Any]:
        return {
            "connections_per_second": {f"{kind}, {way}": each for (kind, way), each in self.rates.items()},
            "server_cpu_ms": {f"{kind}, {way}": each for (kind, way), each in self.server_cpu.items()},
            "workers": WORKERS,
            "join_seconds": self.joins,
        }


def measure(
    server: TlsFiles,
    worker: TlsFiles,
    logs: Path,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> Connections:
    """`server` and `worker`: their certificates; `seconds`: of each port in each round. Raises ChildError."""
    found = Connections()
    client = Child("connecting", ["-m", "benchmarks.programs.connecting"], logs / "connecting.log")
    try:
        for turn in range(rounds):
            say(f"connections: round {turn + 1} of {rounds}")
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                files = tls.keywords(worker) if way == TLS else {}
                options = tls.options(server) if way == TLS else []
                _round(found, way, client, files, options, logs, seconds)
    finally:
        client.close()
    return found


def _round(
    found: Connections,
    way: str,
    client: Child,
    files: dict[str, str],
    options: Sequence[str],
    logs: Path,
    seconds: float,
) -> None:
    """Of a server of its own: whoever has joined one before would be told to wait."""
    data = _free_port()
    extra = [*options, "--data-port", str(data)]
    servers, hosts = start_servers(f"connecting-{way}", LOAD, extra, logs)
    try:
        joined = client.ask("join", hosts=hosts, workers=WORKERS, threads=THREADS, connect=files)
        found.joins.setdefault(way, []).append(joined["seconds"])
        process = psutil.Process(servers[0].pid)
        for kind, port in (("grpc", parse_address(hosts).port), ("socket", data)):
            before = _cpu(process)
            said = client.ask("knock", port=port, kind=kind, seconds=seconds, files=files or None)
            found.rates.setdefault((kind, way), []).append(said["count"] / said["seconds"])
            spent = 1e3 * (_cpu(process) - before) / said["count"]
            found.server_cpu.setdefault((kind, way), []).append(spent)
    finally:
        for each in servers:
            # Its job is not over, and nobody waits for it.
            each.close(patience=0.0)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
