"""What is compared: each peer is a running system that takes steps when it is asked to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from benchmarks.loads import Load


@dataclass(frozen=True, slots=True)
class Burst:
    """One measurement: `steps` of all workers together, in `seconds` from the first one's begin to the
    last one's end. `loopback`: bytes that the network interface lo carried meanwhile, all processes together;
    `server_cpu`, `worker_cpu`: CPU seconds of all servers, of all workers (0 where nobody asks)."""

    steps: int
    seconds: float
    loopback: int
    server_cpu: float
    worker_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


class Peer(Protocol):
    """Prepared for one load at a time; idle, without any work to do, between its bursts."""

    name: str
    label: str

    def prepare(self, load: Load) -> None: ...

    def measure(self, steps: int) -> Burst:
        """`steps` per worker."""
        ...

    def release(self) -> None: ...


def watched(
    servers: Sequence[int], run: Callable[[], Sequence[dict[str, Any]]], workers: Sequence[int] = ()
) -> Burst:
    """What `run` took; it returns one {begin, end, steps} per measuring program. `servers`, `workers`: by process."""
    cpu, worked, loopback = _cpu(servers), _cpu(workers), _loopback()
    parts = run()
    seconds = max(part["end"] for part in parts) - min(part["begin"] for part in parts)
    return Burst(
        steps=sum(part["steps"] for part in parts),
        seconds=seconds,
        loopback=_loopback() - loopback,
        server_cpu=_cpu(servers) - cpu,
        worker_cpu=_cpu(workers) - worked,
    )


def _cpu(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(time.user + time.system for time in times))


def _loopback() -> int:
    counters = psutil.net_io_counters(pernic=True).get("lo")
    return counters.bytes_sent if counters else 0


def calibrated(peer: Peer, seconds: float, least: int) -> int:
    """Warm `peer` up and find how many steps last about `seconds`; at least `least`."""
    steps = 1
    peer.measure(steps)
    while (burst := peer.measure(steps)).seconds < seconds / 4:
        steps *= 2
    return max(least, round(steps * seconds / burst.seconds))
