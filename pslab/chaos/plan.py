"""What is done to a run, and when: drawn from a seed, counted in versions rather than seconds."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
