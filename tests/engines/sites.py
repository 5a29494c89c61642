"""A real Slurm or a real sshd, as a test sees either: commands that run ps-lab on its nodes, and what is left there."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.engines import slurm, sshd
from tests.patience import PATIENCE, at_most

ROOT = Path(__file__).parents[2]
# For each of four processes a place, and more.
HOSTS = ("h0:3", "h1:3")
# A variable of all processes of one site; engines pass on what begins with TF_.
MARK = "TF_TEST_SITE"


@dataclass(frozen=True)
class Site:
    """`around`: what stands before `ps-lab run`; `options`: what follows; `agent`: what runs processes on a node."""

    engine: str
    around: Sequence[str]
    options: Sequence[str]
    environment: Mapping[str, str]
    agent: str

    def run(self, *words: str) -> list[str]:
        """A command line."""
        return [
            *(*self.around, sys.executable, "-m", "pslab", "run", *words),
            *("--engine", self.engine, *self.options),
        ]

    def left(self) -> list[psutil.Process]:
        """What this site's commands have started and has not ended, wherever it belongs by now; not its daemons."""
        daemons = [each for each in psutil.Process().children() if each.name() == self.agent]
        below = [child for daemon in daemons for child in daemon.children(recursive=True)]
        marked = [each for each in psutil.process_iter() if self._marked(each)]
        return [each for each in {*below, *marked} if each not in daemons]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.environment[MARK]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def assert_nothing_left(self, seconds: float | None = None) -> None:
        seconds = at_most(10.0) if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.2)
        assert not left, [process.cmdline() for process in left if process.is_running()]


@contextmanager
def site(engine: str, folder: Path) -> Iterator[Site]:
    """Until the end of the block."""
    more = {MARK: str(folder)}
    if engine == "slurm":
        with slurm.serving(folder) as cluster:
            yield Site("slurm", cluster.lab_around(), (), cluster.environment | more, "slurmd")
    else:
        with sshd.serving(folder) as daemon:
            yield Site("ssh", (), ("--hosts", ",".join(HOSTS)), daemon.environment | more, "sshd")


def missing(engine: str) -> str | None:
    return slurm.missing() if engine == "slurm" else sshd.missing()


class Running:
    """A `ps-lab run --json` and what it said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: list[Mapping[str, Any]] = []
        self._returned: dict[tuple[str, str], int] = {}

    @property
    def lab(self) -> psutil.Process:
        """ps-lab itself, whatever stands before it."""
        me = psutil.Process(self.process.pid)
        inner = [child for child in me.children(recursive=True) if "pslab" in child.cmdline()]
        return inner[-1] if inner else me

    def until(self, process: str, event: str, seconds: float = 4 * PATIENCE) -> Mapping[str, Any]:
        """What that process said in that event, not counting what was returned before."""
        before = self._returned.get((process, event), 0)
        self._listen(
            lambda: len(self._told(process, event)) > before, f"{process} did not say {event}", seconds
        )
        self._returned[process, event] = before + 1
        return self._told(process, event)[before]

    def until_status(
        self, fits: Callable[[Mapping[str, Any]], bool], what: str, seconds: float = 4 * PATIENCE
    ) -> None:
        """Until a status from now on fits."""
        heard = len(self.said)
        self._listen(
            lambda: any(each["event"] == "status" and fits(each) for each in self.said[heard:]), what, seconds
        )

    def _listen(self, heard: Callable[[], bool], missing: str, seconds: float) -> None:
        assert self.process.stdout is not None
        late = threading.Timer(seconds, self.process.kill)
        late.start()
        try:
            while not heard():
                line = self.process.stdout.readline()
                assert line, f"{missing}: {self.said[-5:]}"
                self.said.append(json.loads(line))
        finally:
            late.cancel()

    def _told(self, process: str, event: str) -> list[Mapping[str, Any]]:
        mine = [each["said"] for each in self.said if each["event"] == "process" and each["name"] == process]
        return [said for said in mine if said["event"] == event]

    def end(self, seconds: float = 4 * PATIENCE) -> Mapping[str, Any]:
        """The last line, once it has ended."""
        late = threading.Timer(seconds, self.process.kill)
        late.start()
        assert self.process.stdout is not None
        self.said += [json.loads(line) for line in self.process.stdout]
        self.process.wait()
        late.cancel()
        return self.said[-1]


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Running]:
    with subprocess.Popen(
        [*command, "--json"], cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
