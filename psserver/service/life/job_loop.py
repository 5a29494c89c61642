"""The life of a job: time passes for the coordinator, and a signal ends it; what goes on behind it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psserver.coordinator.status import holdup
from psserver.service.job.job import Job
from psserver.service.life.results import Results
from psserver.service.life.successor import Succession, Successor
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import transfer

log = logging.getLogger("ps-server")

TICK = 0.2
# How long workers may take to leave a job that a signal has ended, in seconds.
LEAVING = 2.0


class JobLoop:
    """`wake` is set when somebody has something to say; `signalled` names the signal that came, if one did. The loop's
    thread owns it."""

    def __init__(
        self,
        job: Job,
        wait_warning: float,
        wake: asyncio.Event,
        signalled: Callable[[], str | None],
        begins_again: Callable[[], bool],
    ) -> None:
        self._job, self._host = job, job.host
        self._wait_warning = wait_warning
        self._wake, self._signalled, self._begins_again = wake, signalled, begins_again

    async def watch(self, results: Results) -> None:
        """Let time pass for the coordinator until everybody has left, or another generation is to begin."""
        job, warn_at = self._job, self._wait_warning
        while not job.decider.over:
            await self._wait_for_wake(min(TICK, job.seconds_to_timer))
            if self._begins_again():
                return
            # As long as a link may take for what it was granted.
            for worker in self._host.orders.unread(transfer(self._host.nbytes, job.terms.worker_timeout)):
                job.give_up(worker, "does not read the versions that it is granted")
            job.tick()
            if job.stopped() is not None:
                results.begin()
            if results.hopeless:
                # Who evaluates the last version waits for the same server.
                await self._wait_for_leaving()
                return
            if self._host.state.failure is not None:
                cause = "diverged" if self._host.state.diverged else "server"
                job.stop(self._host.state.failure, success=False, cause=cause)
            if (signalled := self._signalled()) is not None:
                await self._decided()
                if job.decider.checkpoints is not None:
                    job.decider.input(lambda c, now: c.checkpoint(now))
                job.stop(f"stopped by {signalled}", success=False, cause=signalled)
                await self._wait_for_leaving()
                return
            warn_at = self._warn(job, warn_at)

    async def stay(self, succession: Succession) -> bool:
        """Behind a job that has ended, where another may follow: until a worker of that one comes, or a signal.
        False: a server was lost."""
        if not succession.open:
            return True
        job, followers, began = self._job, self._job.routes.followers, time.monotonic()
        if self._signalled() is None and all(f.state != "lost" for f in followers):
            job.awaited = ("a worker of the next job: the servers stay", began, succession.limit)
            if math.isinf(succession.limit):
                log.info("the servers stay: a worker that joins begins the next job", extra=event("staying"))
        while self._signalled() is None and succession.successor is None:
            if any(follower.state == "lost" for follower in followers):
                return False
            if time.monotonic() - began > succession.limit:
                break
            await self._wait_for_wake(TICK)
        return True

    async def _wait_for_wake(self, seconds: float) -> None:
        """Wait so long, or until somebody has something to say."""
        waiting = asyncio.ensure_future(self._wake.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()
        self._wake.clear()

    async def _decided(self) -> None:
        """While shards are asked about an update nothing can be saved: they have `worker_timeout` to answer."""
        clock = self._host.owner.loop.time
        deadline = clock() + self._job.terms.worker_timeout
        while self._job.coordinator.trying and clock() < deadline and not self._begins_again():
            await self._wait_for_wake(TICK)

    async def _wait_for_leaving(self) -> None:
        """Workers that were told that the job is over have a moment to leave."""
        deadline = self._host.owner.loop.time() + LEAVING
        while not self._job.decider.over and self._host.owner.loop.time() < deadline:
            await self._wait_for_wake(deadline - self._host.owner.loop.time())

    def _warn(self, job: Job, warn_at: float) -> float:
        """Log what a worker waits for, unasked, each time its wait has doubled."""
        held = holdup(job.coordinator, time.monotonic())
        if held is None or held[0] < self._wait_warning:
            return self._wait_warning
        seconds, sentence = held
        if seconds < warn_at:
            return warn_at
        log.warning("%s", sentence, extra=event("worker_waits", seconds=seconds))
        return 2 * seconds


@dataclass(slots=True)
class Continuation:
    """The loop's thread owns it."""

    # Of all servers of the job, as far as they are known; and those that are not where workers were told.
    hosts: tuple[Address, ...]
    moved: frozenset[int]
    # For how many seconds the server that goes on with the job may wait for the others.
    recover: float
    # Why the job is to go on in another server of this process, if it is.
    again: str | None = None
    # The next job, if any.
    successor: Successor | None = None
    # The name of the signal that came, if one did.
    signal: str | None = None
    # Set when something has happened that may end the server.
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_again(self, reason: str) -> None:
        self.again = reason
        self.wake.set()

    def move(self, server: int, address: Address) -> None:
        """That server is there from now on."""
        hosts = list(self.hosts)
        hosts[server] = address
        self.hosts, self.moved = tuple(hosts), self.moved | {server}
        self.begin_again(f"server {server} came back at {address}")


# Seconds that gRPC may take to let go of what has ended.
LAST_EVENTS = 0.05
# How long calls that are cancelled may take for their end.
LAST_WORDS = 0.5


async def end_tasks() -> None:
    """What still runs is cancelled, and comes to its end. Connections end in a turn of the loop of their own.

    Calls that gRPC has cancelled are given a moment: one that is cancelled again while it tells its peer so is
    reported by gRPC with a traceback.
    """
    calls = [task for task in asyncio.all_tasks() if _name(task) == "_handle_exceptions"]
    if calls:
        await asyncio.wait(calls, timeout=LAST_WORDS)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # gRPC has last events for this loop.
    await asyncio.sleep(LAST_EVENTS)


def _name(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", "")
