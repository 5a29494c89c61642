"""Processes that play, a bounded queue in front of them, and a memory of what was played.

A class of 32 that opens one link plays it once. Beyond the queue a viewer is told to try again.
"""

import asyncio
import json
import os
import re
import resource
import signal
from collections import OrderedDict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from pslab.dashboard.playground.play import Budget, played
from pslab.dashboard.playground.settings import SettingsError, read_play
from pswire.command.process import die_with

# Plays that wait for a process, and answers that are remembered, in bytes.
MOST_WAITING, MOST_REMEMBERED = 64, 64 * 2**20
# Of one simulation, beyond what a process has when it is loaded; bytes.
MEMORY = 2**30
# Seconds beyond its budget after which a process is ended.
PATIENCE = 30.0


class Busy(Exception):
    """Too many plays wait already."""


class Pool:
    """Use it within one event loop. Processes start with the first play."""

    def __init__(self, processes: int | None = None, budget: Budget | None = None) -> None:
        self.processes = processes or max(1, min((os.cpu_count() or 2) - 1, 4))
        self.budget = budget or Budget()
        # Plays that were simulated, not remembered.
        self.simulated = 0
        self._executor: ProcessPoolExecutor | None = None
        self._remembered: OrderedDict[str, str] = OrderedDict()
        self._size = 0
        self._running: dict[str, asyncio.Task[str]] = {}

    async def play(self, text: str) -> str:
        """The answer of `play.played`. Raises SettingsError at once for what is no play, and Busy."""
        key = read_play(text).key
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= MOST_WAITING:
                raise Busy(f"{MOST_WAITING} simulations wait already; try again in a few seconds")
            task = asyncio.create_task(self._simulate(key, text))
            self._running[key] = task
        # A viewer that goes away does not end what others wait for.
        return await asyncio.shield(task)

    async def _simulate(self, key: str, text: str) -> str:
        executor = self._processes()
        try:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(executor, played_in_time, text, self.budget)
            waiting = MOST_WAITING * self.budget.seconds / self.processes
            # Never cancelled: the executor's own thread fails at a play that was, when its processes have gone.
            if not (await asyncio.wait({future}, timeout=waiting + PATIENCE))[0]:
                raise TimeoutError
            answer = future.result()
        except (TimeoutError, BrokenProcessPool):
            if self._executor is executor:
                self.close()
            return '{"error": "the simulation was ended: it took too long, or the page ends"}'
        finally:
            del self._running[key]
        self.simulated += 1
        self._remember(key, answer)
        return answer

    def _processes(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.processes, get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
            )
        return self._executor

    def _remember(self, key: str, answer: str) -> None:
        self._remembered[key] = answer
        self._size += len(answer)
        while self._size > MOST_REMEMBERED:
            _, oldest = self._remembered.popitem(last=False)
            self._size -= len(oldest)

    def warm_up(self) -> None:
        """Start the processes before the first viewer asks: each takes a second or two to load."""
        for _ in range(self.processes):
            self._processes().submit(os.getpid)

    def close(self) -> None:
        if self._executor is None:
            return
        executor, self._executor = self._executor, None
        # Each would go on until its play is over, and this process would wait for that at its end.
        for process in list((executor._processes or {}).values()):
            process.kill()
        # Whoever waits hears that the processes have gone.
        executor.shutdown()


def _begin(parent: int) -> None:
    """Servers and workers of this machine come first; and no threads of BLAS for tiny arrays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The page's process may be killed: nothing of it stays behind.
    die_with(parent)
    os.nice(10)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    if found := re.search(
        r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE
    ):
        most = int(found[1]) * 1024 + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise SettingsError("the simulation took too long to make, or one step of it did; make it smaller")


def played_in_time(text: str, budget: Budget) -> str:
    """`played`, which looks at its budget between events only: also what one event takes, and the making, ends."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, 2 * budget.seconds)
    try:
        return played(text, budget)
    except MemoryError:
        return json.dumps({"error": f"the simulation needs more than {MEMORY >> 20} MiB; make it smaller"})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
