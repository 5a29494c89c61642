"""A campaign against a job with replicas on three servers: one server after the other, each when all are back. Pure.

Two servers lost at once can stop such a job, so nobody strikes a server before both copies are in sync and the third
votes. A worker may be struck meanwhile: it has no copy.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.chaos.campaign import Campaign, Disturbance, Kind, Open, Progress, Role, drawn

#: What can be struck, and how. Workers go from server to server, so no relay stands between.
ROLES: Final[tuple[Role, ...]] = ("worker", "leader", "follower", "voter")
KINDS: Final[tuple[Kind, ...]] = ("kill", "stop")
# The states of servers in the status.
_STATES: Final[dict[Role, str]] = {"leader": "leads", "follower": "in sync", "voter": "votes"}
#: Seconds after which a kill that no status has shown counts as over: another process has its place already.
UNSEEN: Final = 10.0


def disturbances(
    seed: int, workers: int, kinds: Sequence[Kind] = KINDS, roles: Sequence[Role] = ROLES
) -> Iterator[Disturbance]:
    """Without end, equally many for each role. A server's `name` is open until it is struck."""
    chance = random.Random(seed)
    while True:
        role, kind = chance.choice(roles), chance.choice(kinds)
        name = f"worker-{chance.randrange(workers)}" if role == "worker" else ""
        yield drawn(chance, kind, role, name)


def whole(seen: Progress) -> bool:
    """Whether all servers are there: one leads, the other copy is in sync, and the third votes."""
    return sorted(seen.servers) == sorted(_STATES.values())


@dataclass
class CopiesCampaign(Campaign):
    """A `Campaign` of a job with replicas. `stop`: seconds that a pause of 1 takes."""

    stop: float = 0.0

    def see(self, now: float, seen: Progress | None) -> Disturbance | None:
        """Return the disturbance that is due, with the name of the process. Otherwise as `Campaign.see`."""
        if seen is None:
            return None
        self._last = seen
        self._recover(now, seen)
        due = self._next
        if due is None or seen.phase != "training":
            return None
        if self._open:
            struck = [each.outcome.disturbance.role for each in self._open]
            early = due.at_once and len(struck) == 1 and "worker" in (due.role, *struck)
            return _named(due, seen) if early else None
        if self._from is None and whole(seen):
            self._from = seen.version
        late = self._from is not None and seen.version >= self._from + due.gap
        return _named(due, seen) if late else None

    def _recover(self, now: float, seen: Progress) -> None:
        for each in self._open:
            outcome = each.outcome
            each.missed = each.missed or not whole(seen)
            if each.base is None:
                each.base = seen.version
            elif seen.version > each.base and outcome.seconds is None:
                outcome.seconds = now - each.since
        self._open = [each for each in self._open if not self._over(each, now, seen)]

    def _over(self, each: Open, now: float, seen: Progress) -> bool:
        """Whether the job has gone on, and the process is back."""
        struck, away = each.outcome.disturbance, now - each.since
        if each.outcome.seconds is None or (struck.kind == "stop" and away < self.stop * struck.pause):
            return False
        if struck.role == "worker":
            return True
        known = struck.kind != "kill" or each.missed or away > UNSEEN
        return known and whole(seen)


def _named(due: Disturbance, seen: Progress) -> Disturbance | None:
    """Return the disturbance of the process that has the role now; None if another server is lost."""
    if due.role == "worker":
        return due
    if not whole(seen):
        return None
    return replace(due, name=f"server-{seen.servers.index(_STATES[due.role])}")
