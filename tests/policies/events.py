"""Jobs in which everything happens to a policy, in this process: what it promises, and how far it went, by its log.

Workers w0 and w1 are fast, w2 is slow. The recount here knows no policy and shares no code with `ps-lab check`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.decisions import entries as e

Event = Callable[["Job"], None]


# What may be promised.
KINDS = ("gap", "age", "misses", "workers")


@dataclass(frozen=True, eq=False)
class Promise:
    """A policy with knobs and what it promises: no worker starts `gap` clocks ahead of the slowest or more than that,
    nothing older than `age` is applied, no worker is cancelled more than `misses` times in a row, and an update has
    contributions of `workers` different workers. None: not promised. `other`: the same policy with other knobs, which
    promise no more."""

    policy: str
    knobs: Mapping[str, Any]
    other: Mapping[str, Any]
    gap: int | None = None
    age: int | None = None
    misses: int | None = None
    workers: int | None = None

    @property
    def name(self) -> str:
        return " ".join([self.policy, *(f"{knob}={value}" for knob, value in self.knobs.items())])


PROMISES = (
    Promise("ssp", {"slack": 2}, {"slack": 2}, gap=2),
    Promise("dssp", {"lower": 1, "upper": 3}, {"lower": 2, "upper": 3}, gap=3),
    Promise("bounded", {"max_staleness": 2}, {"max_staleness": 1}, age=2),
    Promise("bounded", {"max_staleness": 2, "on_stale": "block"}, {"max_staleness": 1}, age=2),
    Promise("ringmaster", {"threshold": 3}, {"threshold": 2}, age=2),
    Promise("ringmaster", {"threshold": 3, "stops": True}, {"threshold": 2}, age=2),
    Promise(
        "deadline-sync",
        {"budget": 1.0, "patience": 3, "grace": 0.5},
        {"budget": 1.0, "patience": 3, "grace": 0.25},
        age=0,
        misses=3,
    ),
    Promise("sync", {}, {}, age=0, workers=3),
    Promise("sync", {"backup": 1}, {"backup": 1}, age=0, workers=2),
    Promise("k-sync", {"aggregate": 2}, {"aggregate": 2, "late": "drop"}, age=0, workers=2),
    Promise("k-async", {"aggregate": 2}, {"aggregate": 2}, workers=2),
    Promise("k-batch-sync", {"aggregate": 2}, {"aggregate": 2}, age=0),
    Promise("rennala", {"aggregate": 2}, {"aggregate": 2}, age=0),
    Promise("median", {}, {}, age=0, workers=3),
    Promise("trimmed-mean", {}, {}, age=0, workers=3),
    Promise("krum", {}, {}, age=0, workers=3),
    Promise("local-sgd", {"steps": 2}, {"steps": 2}, age=0, workers=3),
)


class Job(CoordinatorHarness):
    """A job of three workers. `turns`: how many were played; in each one the fast workers commit what they hold."""

    def __init__(self, promise: Promise, slow: int) -> None:
        super().__init__(
            promise.policy,
            promise.knobs,
            3,
            {"checkpoint_versions": 2, "worker_timeout": 10**6, "ticket_timeout": 10.0**6},
        )
        self.promise, self.slow = promise, slow
        self.turns = self.sessions = 0
        # Index of the first entry after each event.
        self.events: list[int] = []
        self.starts()

    def turn(self) -> None:
        """Let the fast workers commit, and the slow one in each `slow`th turn. Everybody asks for more."""
        self.turns += 1
        for worker in ("w0", "w1", "w2"):
            if worker != "w2" or self.turns % self.slow == 0:
                if self.holds(worker) is not None:
                    self.commits(worker)
        self._ask()
        self.passes(0.7)
        self._ask()

    def _ask(self) -> None:
        for worker, member in sorted(self.coordinator.state.roster.present.items()):
            if self.holds(worker) is None and member.requested is None:
                self.ready(worker)

    def back(self, *workers: str) -> None:
        """Have new processes of these workers join."""
        self.sessions += 1
        for worker in workers:
            self.joins(worker, f"S{self.sessions}")
        self.ready(*workers)

    def restarts(self, worker: str) -> None:
        self.leaves(worker, "killed")
        self.back(worker)

    def crash(self, servers: int = 0) -> None:
        self.servers_crash(servers=servers)
        # The fast ones are back first.
        self.back("w0", "w1", "w2")

    def ends_and_goes_on(self) -> None:
        self.take(self.coordinator.take(inputs.Stopping("enough for today", True, "done"), self.now))
        self.crash()

    def changes(self, name: str, knobs: Mapping[str, object]) -> None:
        self.changes_policy(name, knobs)
        for _ in range(10):
            if not self.coordinator.change:
                return
            self.turn()

    def changes_there_and_back(self) -> None:
        self.changes(self.promise.policy, self.promise.other)
        self.changes(self.promise.policy, self.promise.knobs)


EVENTS: Mapping[str, Event] = {
    "nothing": lambda job: None,
    "fast worker": lambda job: job.restarts("w0"),
    "slow worker": lambda job: job.restarts("w2"),
    "server": lambda job: job.crash(),
    "other numbers": lambda job: job.crash(servers=1 + len(job.events) % 3),
    "stop and resume": Job.ends_and_goes_on,
    "takeover": Job.copy_takes_over,
    "change": Job.changes_there_and_back,
}


def play(
    promise: Promise,
    event: Event,
    fault: Callable[[Job], None] = lambda job: None,
    *,
    slow: int = 5,
    times: int = 5,
) -> Job:
    """Play a job to which the event happens so many times, followed by the fault."""
    job = Job(promise, slow)
    # An event comes while the slow worker is late.
    for _ in range(3):
        job.turn()
    for _ in range(times):
        for _ in range(10):
            job.turn()
        if job.coordinator.state.stopped is not None:
            break
        event(job)
        fault(job)
        job.events.append(len(job.log))
    for _ in range(14):
        job.turn()
    return job


@dataclass
class Recount:
    """What a log says: the largest gap of commits between a worker that is granted a ticket and the slowest one that
    takes part, the greatest age that was applied, the most cancels of a worker in a row, and the fewest workers of an
    update while all took part. Tickets from before a change are the former policy's."""

    gap: int = 0
    age: int = 0
    misses: int = 0
    workers: int = 10**6


def recount(job: Job) -> Recount:
    found, commits, missed = Recount(), Counter[str](), Counter[str]()
    here: set[str] = set()
    held: set[int] = set()
    former: set[int] = set()
    for entry in (record.entry for record in job.log):
        match entry:
            case e.Grant(worker, ticket):
                here.add(worker)
                held.add(ticket)
                found.gap = max(found.gap, commits[worker] - min(commits[each] for each in here))
            case e.Leave(worker):
                here.discard(worker)
            case e.Policy():
                former |= held
            case e.Commit(worker, ticket) if ticket in held:
                commits[worker] += 1
                held.discard(ticket)
            case e.Apply(_, _, _, parts):
                found.age = max([found.age, *(part.staleness for part in parts if part.ticket not in former)])
                if len(here) == 3 and not former & {part.ticket for part in parts}:
                    found.workers = min(found.workers, len({part.worker for part in parts}))
                for part in parts:
                    missed[part.worker] = 0
            case e.Cancel(worker, _, reason) if reason.startswith("version "):
                missed[worker] += 1
                found.misses = max(found.misses, missed[worker])
    return found
