"""What the charts show, as plain numbers: loss along a run, and who held a ticket when."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslab.runs.fold import ABANDONED, APPLIED, CANCELLED, COMMITTED, DROPPED, Fold
from pslab.runs.folder import Run
from pswire.decisions import entries as facts

Series = NDArray[np.float64]
# What became of a ticket that was committed, or not; the job may have ended before a fate was known.
FATES = {APPLIED: "applied", DROPPED: "dropped", COMMITTED: "dropped", CANCELLED: "lost", ABANDONED: "lost"}


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss of every version that has a finite one. `seconds` from the first grant."""

    seconds: Series
    versions: Series
    samples: Series
    loss: Series


def curve(run: Run) -> Curve:
    begun = run.first_grant()
    points = [
        (metric.t - begun, metric.version, metric.samples, metric.loss)
        for metric in run.metrics()
        if metric.kind == "train"
    ]
    table = np.array(points, dtype=np.float64).reshape(-1, 4)
    table = table[np.isfinite(table).all(axis=1)]
    return Curve(*(table[:, column] for column in range(4)))


@dataclass(frozen=True, slots=True)
class Span:
    """`worker` held a ticket from `begin` to `end`, in seconds from the first grant.

    `fate`: "applied", "dropped" or "lost" (cancelled, abandoned, or its worker gone).
    Between two spans the worker had no ticket: it waited, or was away.
    """

    worker: str
    begin: float
    end: float
    fate: str


def spans(run: Run) -> list[Span]:
    """One per granted ticket that came to an end, in the order of their grants."""
    begun, log, ends = run.first_grant(), Fold(remember=True), dict[int, float]()
    for entry in run.decisions():
        log.see(entry.fact, entry.t)
        if isinstance(entry.fact, facts.Commit | facts.Cancel | facts.Abandon):
            ends[entry.fact.ticket] = entry.t
    return [
        Span(ticket.worker, ticket.granted - begun, ends[ticket.number] - begun, FATES[ticket.state])
        for ticket in log.tickets.values()
        if ticket.base is not None and ticket.number in ends
    ]
