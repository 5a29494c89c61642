"""The life of a job: time passes for the coordinator, and a signal ends it; what goes on behind it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psserver.coordinator import Coordinator
from psserver.coordinator.status import holdup, standstill
from psserver.service.job.agreement import NextJob
from psserver.service.job.job import ServedJob
from psserver.service.life.results import Results
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import transfer

log = logging.getLogger("ps-server")

TICK = 0.2
# Seconds after which a line says what a worker waits for.
WAIT_WARNING = 10.0
# Seconds without a version after which a line says what the members do.
STANDSTILL = 30.0
# Seconds that workers may take to leave a job that a signal has ended.
LEAVING = 2.0


class JobLoop:
    """The passage of time for a job. `wake` is set when something has happened; `signalled` names the signal that
    came. The loop's thread owns it."""

    def __init__(
        self,
        job: ServedJob,
        wake: asyncio.Event,
        signalled: Callable[[], str | None],
        begins_again: Callable[[], bool],
    ) -> None:
        self._job, self._host = job, job.host
        self._wake, self._signalled, self._begins_again = wake, signalled, begins_again

    async def watch(self, results: Results) -> None:
        """Let time pass for the coordinator until everybody has left, or another generation begins."""
        job, warn_at, still = self._job, WAIT_WARNING, Standstill()
        while not job.decider.over:
            await self._wait_for_wake(min(TICK, job.seconds_to_timer))
            if self._begins_again():
                return
            # As long as a link may take for a granted version.
            for worker in self._host.orders.unread(transfer(self._host.nbytes, job.terms.worker_timeout)):
                job.give_up(worker, "does not read the versions that it is granted")
            job.tick()
            if job.stopped() is not None:
                results.begin()
            if results.hopeless:
                # The evaluator waits for the same lost server.
                await self._wait_for_leaving()
                return
            if self._host.state.failure is not None:
                job.stop(self._host.state.failure, success=False, cause="server")
            if (signalled := self._signalled()) is not None:
                job.stop(f"stopped by {signalled}", success=False, cause=signalled)
                await self._wait_for_leaving()
                return
            warn_at = self._warn(job, warn_at)
            still.look(job.coordinator, job.decider.now())

    async def _wait_for_wake(self, seconds: float) -> None:
        """Wait that long, or until `wake` is set."""
        waiting = asyncio.ensure_future(self._wake.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()
        self._wake.clear()

    async def _wait_for_leaving(self) -> None:
        """Give workers that were told of the end a moment to leave."""
        deadline = self._host.runtime.now() + LEAVING
        while not self._job.decider.over and self._host.runtime.now() < deadline:
            await self._wait_for_wake(deadline - self._host.runtime.now())

    def _warn(self, job: ServedJob, warn_at: float) -> float:
        """Log what a worker waits for, each time its wait has doubled."""
        held = holdup(job.coordinator, job.decider.now())
        if held is None or held[0] < WAIT_WARNING:
            return WAIT_WARNING
        seconds, sentence = held
        if seconds < warn_at:
            return warn_at
        log.warning("%s", sentence, extra=event("worker_waits", seconds=seconds))
        return 2 * seconds


@dataclass(slots=True)
class Standstill:
    """Says what the members do when no version comes for long, also where none of them waits."""

    _version: int = -1
    _since: float = 0.0
    _say_at: float = STANDSTILL

    def look(self, coordinator: Coordinator, now: float) -> None:
        """Look at the job, and log a line if it stands still: each time that the time has doubled."""
        version = coordinator.state.version
        if version != self._version or not coordinator.state.trains:
            self._version, self._since, self._say_at = version, now, STANDSTILL
            return
        seconds = now - self._since
        if seconds < self._say_at:
            return
        self._say_at = 2 * seconds
        log.warning(
            "no version after %d for %.0f s: %s",
            *(version, seconds, standstill(coordinator, now) or "nobody is here"),
            extra=event("standstill", version=version, seconds=seconds),
        )


@dataclass(slots=True)
class Continuation:
    """The state that decides what follows when this server has run. The loop's thread owns it."""

    # Addresses of all servers, as far as they are known.
    hosts: tuple[Address, ...]
    # Seconds that the server that continues the job may wait for the others.
    recover: float
    # Why the job continues in another server of this process, if it does.
    again: str | None = None
    # The next job, if any.
    following: NextJob | None = None
    # The name of the signal that came, if any.
    signal: str | None = None
    # Set when something has happened that may end the server.
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_again(self, reason: str) -> None:
        self.again = reason
        self.wake.set()


# Seconds that gRPC may take to release what has ended.
LAST_EVENTS = 0.05
# Seconds that cancelled calls may take to end.
LAST_WORDS = 0.5


async def end_tasks() -> None:
    """Cancel all tasks and wait for them. Connections end in a turn of the loop of their own.

    Calls that gRPC has cancelled first get a moment: gRPC reports a call with a traceback if it is cancelled again
    while it tells its peer.
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
