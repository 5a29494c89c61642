"""Time and order in the World: one thread runs at any moment, and a seed says which one is next.

Everything that runs belongs to a process. A thread of it runs until it waits, and hands the baton back; while nobody
can run, time goes on to the next thing that is due.
"""

import heapq
import threading
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Self

from pswire.running import LOOK, RunningClock

# Seconds of real time after which a thread that keeps the baton counts as stuck.
STUCK = 120.0


class Gone(BaseException):
    """The process of this thread is lost: nothing of it runs any more."""


class Stalled(AssertionError):
    """Nobody can run and nothing is due, or too much time has passed."""


class Thread:
    """A thread of a process. It runs only while it has the baton.

    `begin` makes it a thread as the product starts it; `wait` is the one place where it hands the baton back.
    """

    def __init__(self, process: "Process", call: Callable[[], object], name: str) -> None:
        self.process, self.name = process, name
        self.ended = False
        # What it waits for, and until when by the process's clock. None: for nothing, until for ever.
        self.condition: Callable[[], object] | None = None
        self.until: float | None = None
        self._call, self._go, self._back = call, threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._real = threading.Thread(target=self._run, name=f"{process.name}:{name}", daemon=True)

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self.process.alive:
                self._call()
        except Gone:
            pass
        except BaseException as error:
            self.process.errors.append(error)
        self.ended = True
        self._back.release()

    def wait(self, condition: Callable[[], object] | None, seconds: float | None) -> None:
        """Hand the baton back until the condition holds or the time has passed. Raises Gone."""
        if not self.process.alive:
            raise Gone
        self.condition = condition
        self.until = None if seconds is None else self.process.now() + max(0.0, seconds)
        self._back.release()
        self._go.acquire()
        if not self.process.alive:
            raise Gone

    @property
    def ready(self) -> bool:
        """Whether it can go on now."""
        due = self.until is not None and self.until <= self.process.now() + 1e-9
        return due or (self.condition is not None and bool(self.condition()))

    def resume(self) -> None:
        """Give it the baton, and wait until it hands it back."""
        if self._real.ident is None:
            self._real.start()
        self._go.release()
        if not self._back.acquire(timeout=STUCK):
            raise Stalled(f"{self.process.name}:{self.name} keeps the baton")
        if self.ended:
            self.process.threads.remove(self)


class Process:
    """A process of the World: its threads and its clock. `stopped`: none of its threads runs, as after SIGSTOP."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.stopped = True, False
        self.threads: list[Thread] = []
        self.errors: list[BaseException] = []
        # Work beside its event loop that is not done yet: calls that do it.
        self.beside: list[Callable[[], object]] = []
        # What tells it from all others.
        self.token = world.dice.randbytes(16).hex()
        self.clock = RunningClock(lambda: world.now)
        self.now = self.clock.now
        # Called once it is lost: what others notice of that.
        self.lost: list[Callable[[], object]] = []
        world.processes.append(self)

    def begin(self, call: Callable[[], object], name: str = "main") -> Thread:
        """Start a thread."""
        thread = Thread(self, call, name)
        thread.until = self.now()
        self.threads.append(thread)
        return thread

    def lose(self) -> None:
        """Lose the process: its threads end where they wait, and nothing that they do on the way counts."""
        if not self.alive:
            return
        self.alive = False
        for notice in self.lost:
            notice()
        while self.threads:
            self.world.hand_to(self.threads[0])

    @property
    def over(self) -> bool:
        """Whether all of its threads have ended."""
        return not self.threads


class World:
    """Processes, and what is due. `log`: all that was drawn and all that happened, a line each."""

    def __init__(self, seed: int) -> None:
        self.dice, self.now = Random(seed), 0.0
        self.processes: list[Process] = []
        self.log: list[str] = []
        self.current: Thread | None = None
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    @property
    def process(self) -> Process:
        """The process that runs now."""
        assert self.current is not None, "expected a thread of a process"
        return self.current.process

    def wait(self, condition: Callable[[], object] | None, seconds: float | None = None) -> None:
        """Let others run until the condition holds or the time has passed. Raises Gone if the process is lost."""
        assert self.current is not None, "expected a thread of a process"
        self.current.wait(condition, seconds)

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        """Let something happen after so many seconds."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))

    def say(self, *what: object) -> None:
        """Note what happens."""
        self.log.append(f"{self.now:.6f} {' '.join(map(str, what))}")

    def hand_to(self, thread: Thread) -> None:
        """Give the baton to a thread."""
        before, self.current = self.current, thread
        try:
            thread.resume()
        finally:
            self.current = before

    def run(self, over: Callable[[], bool], seconds: float) -> None:
        """Run until it is over. Raises Stalled where that takes longer than so many seconds of the World."""
        end = self.now + seconds
        while not over():
            if self.now > end:
                raise Stalled(f"not over after {seconds:g} s: {self.state()}")
            if not self._step():
                raise Stalled(f"nothing is due any more: {self.state()}")

    def _step(self) -> bool:
        """Let one thread run, or time pass. False: neither can be."""
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        ready = [
            thread
            for process in self.processes
            if process.alive and not process.stopped
            for thread in process.threads
            if thread.ready
        ]
        if ready:
            self.hand_to(ready[self.dice.randrange(len(ready))] if len(ready) > 1 else ready[0])
            return True
        return self._advance()

    def _advance(self) -> bool:
        """Let time pass up to the next thing that is due. Clocks look as those of real processes do."""
        running = [process for process in self.processes if process.alive and not process.stopped]
        waits = [
            thread.until - process.now()
            for process in running
            for thread in process.threads
            if thread.until is not None
        ]
        next_due = min(waits, default=float("inf"))
        if self._due:
            next_due = min(next_due, self._due[0][0] - self.now)
        if next_due == float("inf"):
            return False
        self.now += min(max(next_due, 1e-6), LOOK)
        for process in running:
            process.clock.look()
        return True

    def state(self) -> str:
        """What each process waits for, for people."""
        return "; ".join(
            f"{process.name} {'stopped' if process.stopped else [thread.name for thread in process.threads]}"
            for process in self.processes
            if process.alive
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            process.stopped = False
            process.lose()
