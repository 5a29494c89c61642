"""A campaign of disturbances, and when the job has recovered from each. Pure.

Disturbances are drawn from a seed. Gaps between them are counted in versions, which the coordinator reports.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["kill", "stop", "cut"]
Role = Literal["worker", "shard", "coordinator"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Percentage of disturbances that strike while the job recovers from the previous one.
OVERLAPPING = 15
# Average versions between two disturbances.
EVERY = 8


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance of the process `name`, such as "server-1".

    "kill" is SIGKILL. "stop" is SIGSTOP, and SIGCONT after `pause` times the worker timeout. "cut" closes the
    connections of a worker to all servers, or of all workers to a server. `gap`: versions since the recovery from the
    previous disturbance; `at_once`: strike before that recovery.
    """

    kind: Kind
    role: Role
    name: str
    gap: int
    at_once: bool = False
    pause: float = 0.0


def drawn(chance: random.Random, kind: Kind, role: Role, name: str) -> Disturbance:
    """When and for how long it strikes is drawn."""
    gap = chance.randrange(1, 2 * EVERY)
    return Disturbance(kind, role, name, gap, chance.randrange(100) < OVERLAPPING, chance.uniform(0.2, 1.5))


def disturbances(
    seed: int, servers: int, workers: int, kinds: Sequence[Kind] = KINDS
) -> Iterator[Disturbance]:
    """Without end, equally many for each role."""
    chance = random.Random(seed)
    roles: list[tuple[Role, list[str]]] = [("worker", [f"worker-{n}" for n in range(workers)])]
    roles.append(("coordinator", ["server-0"]))
    if servers > 1:
        roles.append(("shard", [f"server-{n}" for n in range(1, servers)]))
    while True:
        role, names = chance.choice(roles)
        name = chance.choice(names)
        yield drawn(chance, chance.choice(kinds), role, name)


@dataclass(frozen=True, slots=True)
class Progress:
    """A coordinator's answer. `job`: its name, which a recovery changes."""

    job: str
    version: int
    phase: str


@dataclass(slots=True)
class Outcome:
    """The effect of a disturbance.

    `version`: the newest one before it; `rolled_back`: versions lost by it, None if no server was lost; `seconds`:
    until the next version, None if the job ended before.
    """

    disturbance: Disturbance
    version: int
    rolled_back: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class Open:
    """A disturbance from which the job has not recovered.

    `base`: version in the first answer after it, because the answer before it may be old. `low`: first version of the
    job's next generation.
    """

    outcome: Outcome
    since: float
    job: str
    base: int | None = None
    low: int | None = None


@dataclass
class Campaign:
    """Pass each answer of the coordinator to `see`, do what it returns, then call `done`."""

    plan: Sequence[Disturbance]
    outcomes: list[Outcome] = field(default_factory=list)
    _open: list[Open] = field(default_factory=list)
    _last: Progress | None = None
    # Version from which the gap to the next disturbance is counted.
    _from: int | None = None

    @property
    def over(self) -> bool:
        """Whether each disturbance was carried out, and the next version came."""
        return self._next is None and all(each.seconds is not None for each in self.outcomes)

    @property
    def _next(self) -> Disturbance | None:
        return self.plan[len(self.outcomes)] if len(self.outcomes) < len(self.plan) else None

    def see(self, now: float, seen: Progress | None) -> Disturbance | None:
        """Return the disturbance that is due, if any. `seen`: None for no answer."""
        if seen is not None:
            self._recover(now, seen)
            self._last = seen
        due = self._next
        if self._last is None or due is None:
            return None
        if self._open:
            return due if due.at_once and len(self._open) == 1 else None
        if seen is None or seen.phase != "training":
            return None
        if self._from is None:
            self._from = seen.version
        return due if seen.version >= self._from + due.gap else None

    def done(self, now: float, disturbance: Disturbance) -> None:
        """Record that the disturbance was carried out."""
        assert self._last is not None
        outcome = Outcome(disturbance, self._last.version)
        self.outcomes.append(outcome)
        self._open.append(Open(outcome, now, self._last.job))
        self._from = None

    def _recover(self, now: float, seen: Progress) -> None:
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
                struck = each.outcome.disturbance
                # The coordinator may go on deciding for a while before it notices the loss of a server.
                lost = struck.kind == "kill" and struck.role != "worker"
                recovered = not lost and seen.version > each.base
            if recovered:
                each.outcome.seconds = now - each.since
            else:
                left.append(each)
        self._open = left
