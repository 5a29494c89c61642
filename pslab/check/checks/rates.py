"""Checks of learning rates that workers set: told with a commit, and as a factor of the job's own."""

import math
from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e

# Policies that tolerate bad workers. They are called what their shards aggregate by.
_ROBUST = ("median", "trimmed-mean", "krum")


class Rates(LogCheck):
    """A learning rate is set right behind a commit of the worker that sets it, and its factor is what it says.

    Where the policy tolerates bad workers none of them sets it.
    """

    name = "rates"

    def __init__(self) -> None:
        self._began: object = None
        self._aggregator = "mean"
        self._committed: str | None = None

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        fact = entry.fact
        if isinstance(fact, e.Job):
            self._began = fact.optimizer.get("learning_rate")
            self._aggregator = _aggregator(fact)
        elif isinstance(fact, e.Rate):
            yield from self._rate(fact)
        self._committed = fact.worker if isinstance(fact, e.Commit) else None

    def _rate(self, rate: e.Rate) -> Iterator[str]:
        if self._committed != rate.worker:
            yield f"{rate.worker} sets the learning rate without a commit right before"
        if self._aggregator != "mean":
            yield (
                f"{rate.worker} sets the learning rate to {rate.learning_rate:g}: under {self._aggregator}, "
                "which tolerates bad workers, no worker sets the rate for all"
            )
        began = self._began
        if isinstance(began, bool) or not isinstance(began, int | float) or not began > 0:
            yield f"{rate.worker} sets the learning rate to {rate.learning_rate}, but the job's is {began}"
        elif not rate.learning_rate >= 0 or not math.isclose(
            rate.scale, rate.learning_rate / began, rel_tol=1e-12
        ):
            yield (
                f"learning rate {rate.learning_rate} has factor {rate.scale}, but {rate.learning_rate} / {began} = "
                f"{rate.learning_rate / began}"
            )


def _aggregator(job: e.Job) -> str:
    """How the shards make one gradient of many: as they were told, or as the name of the policy says."""
    if job.tensors is not None:
        return str(job.tensors.get("aggregator", "mean"))
    name = str(job.policy.get("name"))
    return name if name in _ROBUST else "mean"
