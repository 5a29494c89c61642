"""Metrics of versions that workers have evaluated."""

import time
from collections import deque
from typing import Any

from psserver.service.job.decider import Decider

# Evaluations that are remembered for those who look on.
REMEMBERED = 100


class Evaluations:
    """Of one job. `final`: the final version's metrics, once they are known. The loop's thread owns it."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.final: dict[str, float] = {}
        # The newest version that was evaluated while the job went on.
        self._newest = -1
        # Lines of metrics.jsonl, and how many there have been.
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._count = 0

    def report(self, worker: str, version: int, metrics: dict[str, float]) -> str | None:
        """The final version's, of the worker that was asked for them, once; before that any version's, of worker 0, in
        rising order: others of worker 0 come late, and are left out. Why they are refused, if they are."""
        coordinator = self._decider.coordinator
        asked, final = coordinator.evaluator, coordinator.version
        stopped = coordinator.stopped is not None
        member = coordinator.roster.present.get(worker)
        if stopped and worker == asked and version == final and not self.final:
            self.final = metrics
        elif member is None or member.rank or version > final or (stopped and version == final):
            of = f"{asked}'s of version {final}" if asked is not None and not self.final else "none"
            of = of if stopped else f"worker 0's, of versions up to {final}"
            return (
                f"a report of version {version} by {worker}: expected {of} (Stop.evaluate says who is asked)"
            )
        elif stopped or version <= self._newest:
            return None
        self._newest = version
        t = round(time.monotonic() - self._decider.began, 6)
        line = {"t": t, "kind": "eval", "version": version, "worker": worker, "metrics": metrics}
        self._decider.write_or_fail(lambda: self._decider.routes.run_log.metric(line))
        self._recent.append(line)
        self._count += 1
        return None

    def since(self, first: int) -> list[tuple[int, dict[str, Any]]]:
        """Evaluations from number `first` on with their numbers, as far as they are remembered."""
        oldest = self._count - len(self._recent)
        return [(number, line) for number, line in enumerate(self._recent, oldest) if number >= first]
