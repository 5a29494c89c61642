"""What the second copy costs where each server has a machine of its own: network namespaces on links of a given rate.

All "machines" share the cores of this one, so that a step's time here is not that of real machines. Beside it stand the
time that the link alone needs, and the CPU time of each process, from which that can be estimated.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks.links.network import Network
from benchmarks.loads import even
from benchmarks.measures.rounds import rotated
from benchmarks.peers.child import Child
from benchmarks.peers.ours import CPU_ONLY, TERMS

#: Servers of a job without replicas, and of one with them and as many parts.
PAIRS: Final = ((1, 3), (2, 4))
MOST: Final = 4
_NAMES: Final = {1: "alone", 2: "replicas"}


@dataclass
class HostedJob:
    """A running job with one worker, each process on a host of its own, the worker's the last one.

    `seconds`: of a step, one sample for each round; `cpu`: seconds of each process over all rounds, servers first.
    """

    servers: list[Child]
    worker: Child
    copies: int
    steps: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, steps: int, *, counts: bool = True) -> None:
        """Let the worker take steps. Raises ChildError."""
        processes = [psutil.Process(each.pid) for each in (*self.servers, self.worker)]
        before = [_cpu(each) for each in processes]
        burst = self.worker.ask("measure", load="job", steps=steps)
        if counts:
            used = [_cpu(each) - ago for each, ago in zip(processes, before, strict=True)]
            self.cpu = [sum(pair) for pair in zip(self.cpu or [0.0] * len(used), used, strict=True)]
            self.seconds.append((burst["end"] - burst["begin"]) / steps)
            self.steps += steps

    def text(self, beside: "HostedJob | None") -> str:
        """Return the job's row. `beside`: the job without replicas, of which its time is a multiple."""
        ratio = ""
        if beside is not None:
            ratios = [mine / its for mine, its in zip(self.seconds, beside.seconds, strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        *servers, worker = (1e3 * each / self.steps for each in self.cpu)
        each_server = ", ".join(f"{number}: {cpu:.0f}" for number, cpu in enumerate(servers))
        return (
            f"{len(self.servers):7} {_NAMES[self.copies]:>8} {1e3 * statistics.median(self.seconds):9.1f} {ratio:>22}"
            f" {sum(servers) + worker:8.0f}   worker: {worker:.0f}, {each_server}"
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def hosted(folder: Path, network: Network, count: int, copies: int, megabytes: float) -> Iterator[HostedJob]:
    """Run a job on so many servers, each on a host of its own; the last host has the worker. Raises ChildError."""
    *places, last = (host.place for host in (*network.hosts[:count], network.hosts[-1]))
    addresses, started = [f"{place.address}:0" for place in places], {}
    terms = [
        *TERMS,
        "--optimizer",
        "adam",
        "--replicas",
        str(copies),
        "--out",
        str(folder / "run"),
        "--insecure",
    ]
    running: list[Child] = []
    try:
        # Server 0 comes last: it must know the addresses of the others.
        for index in reversed(range(len(places))):
            own = ["--task-index", str(index), "--bind", places[index].address, "--json"]
            command = ["-m", "psserver", "--ps-hosts", ",".join(addresses), *own, *terms]
            log = folder / f"server-{index}.log"
            child = Child(
                f"server-{index}", [*command, "--parent", str(os.getpid())], log, place=places[index]
            )
            running.append(child)
            while (said := child.receive()).get("event") != "ready":
                pass
            addresses[index], started[index] = said["address"], child
        given = {**CPU_ONLY, "PS_REPLICAS": str(copies)}
        program = ["-m", "benchmarks.programs.ours"]
        worker = Child("worker", program, folder / "worker.log", given, place=last)
        running.append(worker)
        connect = {"transport": "socket"}
        worker.ask(
            "prepare", load="job", hosts=",".join(addresses), connect=connect, shapes=even(megabytes, 4)
        )
        yield HostedJob([started[index] for index in range(len(places))], worker, copies)
    finally:
        for child in running:
            child.close(patience=0.0)


def measure(
    folder: Path, rate: str, megabytes: float, rounds: int, seconds: float, say: Callable[[str], object]
) -> None:
    """Have jobs take steps in turn over links of `rate`, each for so long, and say their rows.

    Raises ChildError, NetworkError.
    """
    with Network(MOST + 1, rate) as network:
        link = 2e3 * megabytes * 1e6 / network.payload_rate
        say(
            f"{megabytes:g} MB over links of {rate}: {link:.0f} ms of a step for a server that has the whole model"
        )
        say(f"{'servers':>7} {'':8} {'step, ms':>9} {'ratio':>22} {'CPU, ms':>8}   of each process")
        for few, many in PAIRS:
            out = folder / str(many)
            with (
                hosted(out / "one", network, few, 1, megabytes) as one,
                hosted(out / "two", network, many, 2, megabytes) as two,
            ):
                _take_turns((one, two), rounds, seconds)
                say(one.text(None))
                say(two.text(one))


def _take_turns(jobs: Sequence[HostedJob], rounds: int, seconds: float) -> None:
    for job in jobs:
        job.measure(2, counts=False)
    began = time.monotonic()
    jobs[0].measure(1, counts=False)
    steps = max(2, round(seconds / (time.monotonic() - began)))
    for turn in range(rounds):
        for job in rotated(jobs, turn):
            job.measure(steps)
