"""A campaign against a job with replicas: one server after the other, each when all are back. Pure.

Two servers lost at once can stop such a job, so nobody strikes a server before both copies are in sync and the others
are there. A worker may be struck meanwhile: it has no copy.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pslab.chaos.campaign import OVERLAPPING, Disturbance, Kind, Outcome, Progress, Role
from pswire.model.plan import parts_of

#: What can be struck, and how. Workers go from server to server, so no relay stands between.
ROLES: Final[tuple[Role, ...]] = ("worker", "leader", "primary", "follower", "voter")
KINDS: Final[tuple[Kind, ...]] = ("kill", "stop")
# The roles of servers by their states in the status, but for those that serve a part.
_STATES: Final[dict[str, Role]] = {"leads": "leader", "in sync": "follower", "votes": "voter"}
_SERVES: Final = "serves part "
#: Seconds after which a kill that no status has shown counts as over: another process has its place already.
UNSEEN: Final = 10.0


def roles_of(servers: int) -> tuple[Role, ...]:
    """Return the roles in a job on so many servers with replicas."""
    absent = {"primary"} if parts_of(servers, 2) == 1 else set()
    if servers % 2 == 0:
        absent.add("voter")
    return tuple(role for role in ROLES if role not in absent)


def disturbances(
    seed: int, workers: int, every: int, kinds: Sequence[Kind] = KINDS, roles: Sequence[Role] = ROLES
) -> Iterator[Disturbance]:
    """Yield disturbances without end, equally many for each role. A server's `name` is open until it is struck.

    `every`: average number of versions between two of them.
    """
    chance = random.Random(seed)
    while True:
        role, kind = chance.choice(roles), chance.choice(kinds)
        name = f"worker-{chance.randrange(workers)}" if role == "worker" else ""
        gap = chance.randrange(1, 2 * max(1, every))
        at_once = chance.randrange(100) < OVERLAPPING
        yield Disturbance(kind, name, gap, at_once, chance.uniform(0.2, 1.5), role)


def whole(seen: Progress) -> bool:
    """Whether all servers are there: each part is served and has a copy in sync, and an odd one votes."""
    servers = len(seen.servers)
    parts, votes = parts_of(servers, 2), ["votes"] * (servers % 2)
    served = [f"{_SERVES}{part}" for part in range(1, parts)]
    return sorted(seen.servers) == sorted(["leads", *served, *["in sync"] * parts, *votes])


@dataclass(slots=True)
class _Open:
    """A disturbance that is not over. `base`: version in the first answer after it; `missed`: whether an answer has
    shown its loss."""

    outcome: Outcome
    since: float
    until: float
    base: int | None = None
    missed: bool = False


@dataclass
class CopiesCampaign:
    """A `Campaign` of a job with replicas. `stop`: seconds that a pause of 1 takes."""

    plan: Iterator[Disturbance]
    stop: float
    outcomes: list[Outcome] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _next: Disturbance | None = None
    _last: Progress | None = None
    _from: int | None = None

    def see(self, now: float, seen: Progress | None, more: bool = True) -> Disturbance | None:
        """Return the disturbance that is due, with the name of the process. Otherwise as `Campaign.see`."""
        if seen is None:
            return None
        self._last = seen
        self._recover(now, seen)
        if not more or seen.phase != "training":
            return None
        self._next = due = self._next or next(self.plan, None)
        if due is None:
            return None
        if self._open:
            struck = [each.outcome.disturbance.role for each in self._open]
            early = due.at_once and len(struck) == 1 and "worker" in (due.role, *struck)
            return _named(due, seen) if early else None
        if self._from is None and whole(seen):
            self._from = seen.version
        late = self._from is not None and seen.version >= self._from + due.gap
        return _named(due, seen) if late else None

    def done(self, now: float, disturbance: Disturbance) -> None:
        """Record that the disturbance was carried out."""
        assert self._last is not None
        outcome = Outcome(disturbance, self._last.version)
        self.outcomes.append(outcome)
        stands = self.stop * disturbance.pause if disturbance.kind == "stop" else 0.0
        self._open.append(_Open(outcome, now, now + stands))
        self._next = self._from = None

    def _recover(self, now: float, seen: Progress) -> None:
        for each in self._open:
            outcome = each.outcome
            each.missed = each.missed or not whole(seen)
            if each.base is None:
                each.base = seen.version
            elif seen.version > each.base and outcome.seconds is None:
                outcome.seconds = now - each.since
        self._open = [each for each in self._open if not _over(each, now, seen)]


def _over(each: _Open, now: float, seen: Progress) -> bool:
    """Whether the job has gone on, and the process is back."""
    struck = each.outcome.disturbance
    if each.outcome.seconds is None or now < each.until:
        return False
    if struck.role == "worker":
        return True
    known = struck.kind != "kill" or each.missed or now - each.since > UNSEEN
    return known and whole(seen)


def _named(due: Disturbance, seen: Progress) -> Disturbance | None:
    """Return the disturbance of the process that has the role now; None if another server is lost."""
    if due.role == "worker":
        return due
    if not whole(seen):
        return None
    names = [n for n, state in enumerate(seen.servers) if _STATES.get(state, "primary") == due.role]
    # Those that have it take turns.
    return replace(due, name=f"server-{names[seen.version % len(names)]}")
