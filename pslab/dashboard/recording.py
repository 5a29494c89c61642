"""A decision log in the rows that the page draws. Pure: entries in, lists of plain values out.

A batch is a JSON object of lists, to which the page appends later batches. Workers are indices into `workers`.
Seconds are those of the log's clock.
"""

import math
from collections.abc import Mapping
from typing import Any

from pslab.runs.log import Line
from pslab.runs.summary import Metric
from pslab.runs.work import (
    COMPUTING,
    RECEIVING,
    SENDING,
    UNREPORTED,
    WAITING,
    WASTED,
    TicketTime,
    WorkFold,
)
from psserver.decisions import entries as facts

# Numbers of kinds of stretches, as the page uses them.
KINDS: Mapping[str, int] = {
    COMPUTING: 0,
    RECEIVING: 1,
    SENDING: 2,
    WAITING: 3,
    WASTED: 4,
    UNREPORTED: 5,
}
LISTS = ("workers", "stretches", "tickets", "grants", "fates", "updates", "marks", "evals", "log")
# Marks in a worker's lane.
JOIN, LOST, BACK, LEAVE, DONE, CANCEL, ABANDON, STOP = range(8)
# Entries that the page's log omits: there is one for each contribution, without new information.
QUIET = (facts.Fold,)

Batch = dict[str, Any]


class Recorder:
    """Converts the entries of a log, given in order. `take` returns the new rows since the last call.

    - `workers`: names, in the order of their first entry
    - `stretches`: [worker, kind, begin, end, ticket]
    - `grants`: [ticket, worker, version, t]
    - `tickets`: [ticket, worker, base version, begin, end, samples, loss], once committed
    - `fates`: [ticket, 1 applied or 0 dropped, t, version, staleness, weight, reason]
    - `updates`: [version, t, contributions, mean staleness, max staleness, loss, lr scale, samples so far]
    - `marks`: [worker (-1: the job), kind, t, sentence]
    - `evals`: [t, version, {metric: value}]
    - `log`: [number, t, kind, worker or -1, sentence]
    """

    def __init__(self) -> None:
        self.job: dict[str, Any] = {}
        self._log = WorkFold()
        self._numbers: dict[str, int] = {}
        self._batch = _empty()

    @property
    def seconds(self) -> float:
        """Time of the newest entry up to the stop; workers may leave later."""
        return self._log.seconds

    @property
    def version(self) -> int:
        return -1 if self._log.version is None else self._log.version

    @property
    def stop(self) -> dict[str, Any] | None:
        """How the job ended, from its stop entry."""
        stop = self._log.stop
        if stop is None:
            return None
        return {"success": stop.success, "reason": stop.reason, "version": stop.version}

    @property
    def workers(self) -> list[str]:
        return list(self._numbers)

    def number(self, worker: str) -> int:
        """Return the index of a worker, and register a new one."""
        if worker not in self._numbers:
            self._numbers[worker] = len(self._numbers)
            self._batch["workers"].append(worker)
        return self._numbers[worker]

    def see(self, entry: Line) -> None:
        """Add an entry."""
        fact, t = entry.fact, entry.t
        stopped = self._log.stop is not None
        worker = getattr(fact, "worker", None)
        number = self.number(worker) if isinstance(worker, str) else -1
        for work in self._log.work(fact, t):
            self._add_work(work)
        self._add_event(fact, t, number)
        kind = _MARKS.get(type(fact))
        if kind is not None and not stopped:
            self._batch["marks"].append([number, kind, t, fact.sentence()])
        if not isinstance(fact, QUIET):
            self._batch["log"].append([entry.i, t, entry.kind, number, fact.sentence()])

    def measured(self, metric: Metric) -> None:
        """Add a line of metrics.jsonl if it is an evaluation."""
        if metric.kind == "eval":
            finite = {name: value for name, value in metric.metrics.items() if math.isfinite(value)}
            self._batch["evals"].append([metric.t, metric.version, finite])

    def take(self) -> Batch:
        """Return the new rows, with the current `seconds` and `version`, and `job` once it is known."""
        batch, self._batch = self._batch, _empty()
        batch = {name: values for name, values in batch.items() if values}
        return {**batch, "seconds": self.seconds, "version": self.version, "job": self.job}

    def _add_work(self, work: TicketTime) -> None:
        number = self.number(work.worker)
        for stretch in (*work.before, *work.held):
            if stretch.end > stretch.begin:
                self._batch["stretches"].append(
                    [number, KINDS[stretch.kind], _round(stretch.begin), _round(stretch.end), work.ticket]
                )

    def _add_event(self, fact: facts.Entry, t: float, number: int) -> None:
        match fact:
            case facts.Job():
                self._describe(fact)
            case facts.Model():
                self.job = {**self.job, "optimizer": fact.optimizer}
            case facts.Policy(policy) if self.job is not None:
                self.job = {**self.job, "policy": policy}
            case facts.Grant(_, ticket, version):
                self._batch["grants"].append([ticket, number, version, t])
            case facts.Commit(_, ticket, _, samples, loss):
                finite = loss if math.isfinite(loss) else None
                self._batch["tickets"].append([ticket, number, t, samples, finite])
            case facts.Apply():
                self._applied(fact, t)
            case facts.Drop(_, ticket, staleness, reason):
                self._batch["fates"].append([ticket, 0, t, self.version, staleness, 0.0, reason])

    def _describe(self, job: facts.Job) -> None:
        self.job = {
            "name": job.job,
            "policy": job.policy,
            "seed": job.seed,
        }

    def _applied(self, apply: facts.Apply, t: float) -> None:
        ages, counts = [part.staleness for part in apply.parts], self._log.pending
        self._batch["fates"] += [
            [part.ticket, 1, t, apply.version, part.staleness, part.weight, ""] for part in apply.parts
        ]
        mean = sum(ages) / len(ages) if ages else 0.0
        rest = [len(ages), mean, max(ages, default=0), counts.loss, apply.lr_scale, counts.samples]
        self._batch["updates"].append([apply.version, t, *rest])


_MARKS: Mapping[type[Any], int] = {
    facts.Join: JOIN,
    facts.Lost: LOST,
    facts.Back: BACK,
    facts.Leave: LEAVE,
    facts.Done: DONE,
    facts.Cancel: CANCEL,
    facts.Abandon: ABANDON,
    facts.Stop: STOP,
}


def _empty() -> Batch:
    return {name: [] for name in LISTS}


def _round(seconds: float) -> float:
    return round(seconds, 6)
