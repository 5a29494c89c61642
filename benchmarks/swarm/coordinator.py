"""The coordinator alone: what its decisions cost, without servers, payloads or a network."""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from psserver.coordinator import Coordinator, JobTerms, Output, Send
from psserver.policies import build
from pswire import protocol

# Commits between two looks at the clock, and turns of each policy.
ROUND, ROUNDS = 120, 20


@dataclass(frozen=True)
class Decided:
    """CPU microseconds of one commit that asks for the next ticket, with the entries and notices that follow."""

    policy: str
    sessions: int
    commits: int
    microseconds: float
    entries_per_commit: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Workers:
    """Each commits in turn, as soon as it holds a ticket."""

    def __init__(self, policy: str, knobs: Mapping[str, object], sessions: int) -> None:
        terms = JobTerms("alone", {"name": "sgd"}, servers=1, workers=sessions, seed=0)
        self.coordinator = Coordinator(terms, build(policy, knobs, sessions), 0.0)
        self._holding: deque[tuple[str, int]] = deque()
        self._now = 0.0
        self._take(self.coordinator.opening())
        names = [f"w{index}" for index in range(sessions)]
        for name in names:
            self._take(self.coordinator.join(name, name, None, 0.0)[1])
            self._take(self.coordinator.connect(name, 0, name, 0.0))
        for name in names:
            self._take(self.coordinator.handle(name, 0, protocol.Ready(), 0.0))
        # The initial values.
        self.commit()

    def commit(self) -> None:
        """Of the worker that has held its ticket the longest."""
        worker, ticket = self._holding.popleft()
        self._now += 1e-4
        commit = protocol.Commit(ticket, samples=1, loss=1.0, ready=True)
        self._take(self.coordinator.handle(worker, 0, commit, self._now, norm=1.0))

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send) and isinstance(output.notice, protocol.Grant):
                self._holding.append((output.worker, output.notice.ticket))


def measure(
    policies: Mapping[str, Mapping[str, object]], sessions: int, seconds: float, rounds: int = ROUNDS
) -> list[Decided]:
    """For about so many seconds per policy, after each worker has committed twice. Policies take turns, and of each the
    least costly turn counts: so a busy machine does not favour one."""
    measured = [(name, _Workers(name, knobs, sessions)) for name, knobs in policies.items()]
    for _, workers in measured:
        for _ in range(2 * sessions):
            workers.commit()
    before = {name: workers.coordinator.entries for name, workers in measured}
    least, commits = dict.fromkeys(policies, math.inf), dict.fromkeys(policies, 0)
    for _ in range(rounds):
        for name, workers in measured:
            done, took, begin = 0, 0.0, time.process_time()
            while not done or took < seconds / rounds:
                for _ in range(ROUND):
                    workers.commit()
                done += ROUND
                took = time.process_time() - begin
            commits[name] += done
            least[name] = min(least[name], took / done)
    return [
        Decided(
            name,
            sessions,
            commits[name],
            1e6 * least[name],
            (workers.coordinator.entries - before[name]) / commits[name],
        )
        for name, workers in measured
    ]
