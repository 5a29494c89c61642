"""What is done to a run, and when; and when the job has recovered from it. Pure.

Disturbances are drawn from a seed and counted in versions rather than seconds; the coordinator says how
far the job is.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["kill", "stop", "cut"]
Role = Literal["worker", "shard", "coordinator"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Of a hundred disturbances, so many strike while the job recovers from the one before.
AT_ONCE = 15


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`name`: of a process, "server-1". `gap`: versions since the recovery from the one before; `at_once`: not even
    that.

    "kill" is SIGKILL. "stop" is SIGSTOP, and SIGCONT after `pause` times the worker timeout. "cut" closes the
    connections of a worker to all servers, or of all workers to a server.
    """

    kind: Kind
    name: str
    gap: int
    at_once: bool = False
    pause: float = 0.0

    @property
    def role(self) -> Role:
        """What the process does."""
        return "worker" if self.name.startswith("worker") else "shard" if self.index else "coordinator"

    @property
    def index(self) -> int:
        """Of the process within its role's list."""
        return int(self.name.rpartition("-")[2])


def disturbances(
    seed: int, servers: int, workers: int, every: int, kinds: Sequence[Kind] = KINDS
) -> Iterator[Disturbance]:
    """Without end. `every`: versions between two of them, on the average; `servers`: 0 where none may be lost.

    All roles that there are come equally often.
    """
    chance = random.Random(seed)
    roles = [[f"worker-{n}" for n in range(workers)]]
    if servers:
        roles.append(["server-0"])
    if servers > 1:
        roles.append([f"server-{n}" for n in range(1, servers)])
    while True:
        name, kind = chance.choice(chance.choice(roles)), chance.choice(kinds)
        gap = chance.randrange(1, 2 * max(1, every))
        yield Disturbance(kind, name, gap, chance.randrange(100) < AT_ONCE, chance.uniform(0.2, 1.5))


@dataclass(frozen=True, slots=True)
class Seen:
    """A coordinator's answer. `job`: its name, which another life of the job changes."""

    job: str
    version: int
    phase: str


@dataclass(slots=True)
class Outcome:
    """What a disturbance did. `version`: the newest before it; `rolled_back`: versions that were lost by it, None where
    no server was given up; `seconds`: until the next version was made, None where the job ended before."""

    disturbance: Disturbance
    version: int
    rolled_back: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class _Open:
    """A disturbance from which the job has not recovered. `base`: the version in the first answer behind it, for the
    answer before it may be old. `low`: the first version of the job's next life."""

    outcome: Outcome
    since: float
    job: str
    base: int | None = None
    low: int | None = None


@dataclass
class Campaign:
    """`see` each answer of the coordinator; do what it returns, then say `done`."""

    plan: Iterator[Disturbance]
    outcomes: list[Outcome] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _next: Disturbance | None = None
    _last: Seen | None = None
    # The version from which the gap to the next is counted.
    _from: int | None = None

    def see(self, now: float, seen: Seen | None, more: bool = True) -> Disturbance | None:
        """What is to be done now, if anything. `seen`: None where there was no answer; `more`: begin another one."""
        if seen is not None:
            self._recover(now, seen)
            self._last = seen
        if not more or self._last is None:
            return None
        if self._next is None:
            self._next = next(self.plan, None)
        due = self._next
        if due is None:
            return None
        if self._open:
            return due if due.at_once and len(self._open) == 1 else None
        if seen is None or seen.phase != "training":
            return None
        if self._from is None:
            self._from = seen.version
        return due if seen.version >= self._from + due.gap else None

    def done(self, now: float, disturbance: Disturbance) -> None:
        """It was done."""
        assert self._last is not None
        outcome = Outcome(disturbance, self._last.version)
        self.outcomes.append(outcome)
        self._open.append(_Open(outcome, now, self._last.job))
        self._next = self._from = None

    def _recover(self, now: float, seen: Seen) -> None:
        left = []
        for each in self._open:
            if each.base is None:
                each.base = seen.version
            if seen.job != each.job and each.low is None:
                each.low = seen.version
                each.outcome.rolled_back = max(0, each.outcome.version - seen.version)
            if each.low is not None:
                recovered = seen.version > each.low
            else:
                given_up = each.outcome.disturbance
                # The coordinator may decide on for a while before it knows that a server is lost.
                lost = given_up.kind == "kill" and given_up.role != "worker"
                recovered = not lost and seen.version > each.base
            if recovered:
                each.outcome.seconds = now - each.since
            else:
                left.append(each)
        self._open = left
