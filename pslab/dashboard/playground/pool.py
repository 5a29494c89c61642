"""Processes that simulate, with a bounded queue and a cache of results.

If 32 viewers open one link, it is simulated once. When the queue is full, a viewer is asked to try again.
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
from pslab.dashboard.playground.settings import PlaygroundError, read_play
from psserver.fast import prepare
from psserver.shard.arithmetic import LOOPS
from pswire.command.process import die_with

# Limits: queued simulations, and bytes of cached results.
QUEUE_LIMIT, CACHE_LIMIT = 64, 64 * 2**20
# Bytes that one simulation may use, beyond those of a process that has loaded its modules.
MEMORY = 2**30
# Seconds beyond its budget after which a simulation is ended.
PATIENCE = 30.0


class Busy(Exception):
    """The queue is full."""


class PlayPool:
    """A pool of processes, started by the first request. Use it within one event loop."""

    def __init__(self, processes: int | None = None, budget: Budget | None = None) -> None:
        self.processes = processes or max(1, min((os.cpu_count() or 2) - 1, 4))
        self.budget = budget or Budget()
        # Number of requests that were simulated, not cached.
        self.simulated = 0
        self._executor: ProcessPoolExecutor | None = None
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._size = 0
        self._running: dict[str, asyncio.Task[str]] = {}

    async def play(self, text: str) -> str:
        """Return the result of `play.played`. Raises SettingsError for a malformed request, and Busy."""
        key = read_play(text).key
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= QUEUE_LIMIT:
                raise Busy(f"{QUEUE_LIMIT} simulations are queued already; try again in a few seconds")
            task = asyncio.create_task(self._simulate(key, text))
            self._running[key] = task
        # A viewer that goes away must not cancel what others wait for.
        return await asyncio.shield(task)

    async def _simulate(self, key: str, text: str) -> str:
        executor = self._processes()
        try:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(executor, played_in_time, text, self.budget)
            waiting = QUEUE_LIMIT * self.budget.seconds / self.processes
            # Never cancel the future: the executor's thread would fail on it once its processes are gone.
            if not (await asyncio.wait({future}, timeout=waiting + PATIENCE))[0]:
                raise TimeoutError
            answer = future.result()
        except (TimeoutError, BrokenProcessPool):
            if self._executor is executor:
                self.close()
            return '{"error": "the simulation was ended: it took too long, or the dashboard is ending"}'
        finally:
            del self._running[key]
        self.simulated += 1
        self._store(key, answer)
        return answer

    def _processes(self) -> ProcessPoolExecutor:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.processes, get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
            )
        return self._executor

    def _store(self, key: str, answer: str) -> None:
        self._cache[key] = answer
        self._size += len(answer)
        while self._size > CACHE_LIMIT:
            _, oldest = self._cache.popitem(last=False)
            self._size -= len(oldest)

    def warm_up(self) -> None:
        """Start the processes before the first request; each takes a second or two to load."""
        for _ in range(self.processes):
            self._processes().submit(os.getpid)

    def close(self) -> None:
        """End all processes and fail their requests."""
        if self._executor is None:
            return
        executor, self._executor = self._executor, None
        # Otherwise this process would wait at its exit until the simulations are over.
        for process in list((executor._processes or {}).values()):
            process.kill()
        # Pending requests fail with BrokenProcessPool.
        executor.shutdown()


def _begin(parent: int) -> None:
    """Initialise a process: low priority, a memory limit, and no BLAS threads for tiny arrays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # End with the dashboard, even if that is killed.
    die_with(parent)
    os.nice(10)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    # Before its memory is limited, and outside of any simulation's time.
    prepare([(loop, loop.letters) for loop in LOOPS])
    if found := re.search(
        r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE
    ):
        limit = int(found[1]) * 1024 + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise PlaygroundError("the simulation takes too long to build, or one step of it does; make it smaller")


def played_in_time(text: str, budget: Budget) -> str:
    """Call `played` with a timer, because its budget is checked between events only."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, 2 * budget.seconds)
    try:
        return played(text, budget)
    except MemoryError:
        return json.dumps({"error": f"the simulation needs more than {MEMORY >> 20} MiB; make it smaller"})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
