"""Many light workers in one event loop: when each may commit, and what is counted of a burst."""

import asyncio
import gc
import time
from typing import Any

import psutil

from benchmarks.swarm.member import Member, Model
from pswire.model.plan import VariableSpec, make_plan

# Workers that join, or open a link, at the same time.
AT_ONCE = 16
# Between two attempts of a server that says "wait"; seconds.
PAUSE = 0.2
# Commits that are not counted at the beginning of a burst, as a share of it, and at most; seconds.
WARM_UP, LONGEST_WARM_UP = 0.2, 1.0
# A burst in which nobody has committed yet goes on for so long; seconds.
LONGEST = 60.0
VARIABLES = 4


def model_of(nbytes: int, servers: int) -> Model:
    """`nbytes` of weights in a few vectors."""
    elements = max(1, nbytes // 4 // VARIABLES)
    return Model(make_plan([VariableSpec(f"v{i}", (elements,)) for i in range(VARIABLES)], servers))


class Swarm:
    """All members, and what is counted of them. The loop's thread owns everything."""

    def __init__(self, model: Model) -> None:
        self.members: list[Member] = []
        self.prepared = 0
        self.losses: list[str] = []
        self.now = time.monotonic
        # Whoever joins, or opens a link.
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.model = model
        self._parked: list[Member] = []
        self._running = False
        self._counting = False
        self._seconds: list[float] = []

    # For members

    def runnable(self, member: Member) -> None:
        if self._running:
            member.contribute()
        else:
            self._parked.append(member)

    def committed(self, member: Member, seconds: float) -> None:
        if self._counting:
            self._seconds.append(seconds)

    def lost(self, member: Member, reason: str) -> None:
        self.losses.append(reason)

    @property
    def alive(self) -> int:
        """Members that take part."""
        return sum(member.alive for member in self.members)

    # Bursts

    async def measure(self, seconds: float, watched: list[psutil.Process]) -> dict[str, Any]:
        """All members commit as often as they can. `watched`: the servers."""
        self._running = True
        parked, self._parked = self._parked, []
        for member in parked:
            self.runnable(member)
        # A look through all that the members are made of would stop them for as long as it takes.
        gc.collect()
        gc.freeze()
        await asyncio.sleep(min(LONGEST_WARM_UP, WARM_UP * seconds))
        self._seconds, self._counting = [], True
        begin, cpu, servers = time.monotonic(), time.process_time(), cpu_of(watched)
        await asyncio.sleep(seconds)
        while not self._seconds and time.monotonic() - begin < LONGEST and self.alive:
            # No commit says nothing.
            await asyncio.sleep(PAUSE)
        self._counting = self._running = False
        took, spent, waits = time.monotonic() - begin, time.process_time() - cpu, sorted(self._seconds)
        servers = cpu_of(watched) - servers
        return {
            "commits": len(waits),
            "seconds": took,
            "cpu": spent,
            "server_cpu": servers,
            "p50": quantile(waits, 0.5),
            "p99": quantile(waits, 0.99),
            "longest": waits[-1] if waits else None,
            "lost": len(self.losses),
            "losses": sorted(set(self.losses))[:3],
        }


def cpu_of(processes: list[psutil.Process]) -> float:
    """CPU seconds that they have taken so far."""
    return float(sum(sum(each.cpu_times()[:2]) for each in processes))


def quantile(ordered: list[float], share: float) -> float | None:
    """Of sorted numbers; None without any."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
