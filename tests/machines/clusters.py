"""Slurm and ssh over machines: each of their nodes is one, and ps-lab runs on the first machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.engines import sites, slurm, sshd
from tests.engines.sites import MARK, Site
from tests.machines.machines import Machine, Machines

ENGINES = ("ssh", "slurm")
# Machines. With Slurm processes are on the last three; the first has the controller.
COUNT = 4
# What holds an engine's keepers, on each node.
AGENTS: Mapping[str, Sequence[str]] = {
    "ssh": ("sshd",),
    "slurm": ("slurmd", "slurmstepd"),
}
# Of a run: words of a command line, and names of programs.
WORDS = ("pslab", "pslab.launch.remote.keeper", "psserver", "psworker.script")
PROGRAMS = ("salloc", "srun", "ssh", "slurmstepd")


def missing(engine: str) -> str | None:
    """Why there is no such engine here, in one line; None: there is."""
    return sites.missing(engine)


@dataclass(frozen=True)
class Spread(Site):
    """A site whose nodes are machines."""

    machines: Machines

    def left(self) -> list[psutil.Process]:
        """What belongs to a run, on any of them."""
        return [each for each in self.machines.running() if _of_a_run(each)]

    def server(self, index: int) -> tuple[Machine, psutil.Process]:
        """Where it is, and the process."""

        def fits(process: psutil.Process) -> bool:
            words = process.cmdline()
            return "psserver" in words and words[words.index("--task-index") + 1] == str(index)

        return self._only(fits)

    def agents(self, machine: Machine) -> list[psutil.Process]:
        """Of the engine, there."""
        return [
            each for each in machine.running() if _holds(each, lambda it: it.name() in AGENTS[self.engine])
        ]

    def _only(self, fits: Callable[[psutil.Process], bool]) -> tuple[Machine, psutil.Process]:
        [found] = [
            (machine, each)
            for machine in self.machines.machines
            for each in machine.running()
            if _holds(each, fits)
        ]
        return found


def _of_a_run(process: psutil.Process) -> bool:
    return _holds(process, lambda it: it.name() in PROGRAMS or any(word in WORDS for word in it.cmdline()))


def _holds(process: psutil.Process, fits: Callable[[psutil.Process], bool]) -> bool:
    """Not of one that has ended, or is about to."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and fits(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@contextmanager
def spread(engine: str, machines: Machines, folder: Path) -> Iterator[Spread]:
    """Until the end of the block. `machines`: COUNT of them."""
    hosts = [each.host for each in machines.machines]
    more = {MARK: str(folder)}
    if engine == "slurm":
        with slurm.serving(folder, hosts[0], hosts[1:]) as cluster:
            yield Spread(engine, cluster.lab_around(), (), cluster.environment | more, "slurmd", machines)
    else:
        with sshd.serving(folder, hosts) as daemon:
            options = ("--hosts", ",".join(f"{host.name}:2" for host in hosts))
            yield Spread(engine, hosts[0].prefix, options, daemon.environment | more, "sshd", machines)
