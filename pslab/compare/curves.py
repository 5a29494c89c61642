"""What the charts show, as plain numbers: loss along a run, and who held a ticket when."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslab.compare.measure import first_grant
from pslab.runs.folder import Run
from pswire.decisions import entries as facts

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss of every version that has a finite one. `seconds` from the first grant."""

    seconds: Series
    versions: Series
    samples: Series
    loss: Series


def curve(run: Run) -> Curve:
    begun = first_grant(run)
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
    begun = first_grant(run)
    held: dict[int, tuple[str, float]] = {}
    ended: dict[int, float] = {}
    fates: dict[int, str] = {}
    for entry in run.decisions():
        if isinstance(entry.fact, facts.Grant):
            held[entry.fact.ticket] = entry.fact.worker, entry.t - begun
        for ticket, fate in _fates(entry.fact):
            if fate != "applied" or ticket not in ended:
                ended.setdefault(ticket, entry.t - begun)
            fates[ticket] = fate
    return [
        Span(worker, since, ended[ticket], fates[ticket])
        for ticket, (worker, since) in held.items()
        if ticket in ended
    ]


def _fates(fact: facts.Entry) -> Iterator[tuple[int, str]]:
    """(ticket, fate) that an entry settles; a commit ends the span, its fate comes later."""
    match fact:
        case facts.Commit(_, ticket):
            yield ticket, "dropped"
        case facts.Apply(_, _, _, parts):
            yield from ((part.ticket, "applied") for part in parts)
        case facts.Drop(_, ticket):
            yield ticket, "dropped"
        case facts.Cancel(_, ticket) | facts.Abandon(_, ticket):
            yield ticket, "lost"
