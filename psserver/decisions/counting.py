"""Counting rules that all readers of the log share, servers and ps-lab alike: losses of updates, and workers' times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from psserver.decisions.entries import Commit


class Pending:
    """Committed contributions without a fate. Takes commits, drops and updates in order.

    `tickets`: ticket -> samples and mean loss. `samples`: the number applied so far. `losses`: the finite losses of the
    newest update's contributions.
    """

    def __init__(
        self, tickets: Mapping[int, tuple[int, float]] = {}, samples: int = 0, losses: Sequence[float] = ()
    ) -> None:
        self.tickets, self.samples, self.losses = dict(tickets), samples, losses

    @property
    def loss(self) -> float | None:
        """The mean loss of the newest update; None if no loss is finite."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def copy(self) -> "Pending":
        return Pending(self.tickets, self.samples, self.losses)

    def commit(self, ticket: int, samples: int, loss: float) -> None:
        self.tickets[ticket] = samples, loss

    def drop(self, ticket: int) -> None:
        self.tickets.pop(ticket, None)

    def apply(self, tickets: Iterable[int]) -> None:
        """Count an update. A ticket whose commit is not known counts nothing."""
        parts = [self.tickets.pop(ticket, (0, math.nan)) for ticket in tickets]
        self.samples += sum([samples for samples, _ in parts])
        self.losses = [loss for _, loss in parts if math.isfinite(loss)]


class Moments(NamedTuple):
    """When a worker changed from one activity to the next under a ticket, in seconds of the log, in rising order.

    `asked`: the end of its steps without a ticket. `granted`: the end of its wait for the grant, unless the ticket came
    ahead. The time after `computed` is the way out, including the push.
    """

    asked: float
    granted: float
    pulled: float
    computed: float


def moments(since: float, granted: float, now: float, commit: Commit) -> Moments:
    """Return the moments between `since`, the end of the worker's ticket before, and its commit at `now`.

    For a worker that reports its times. Clocks that differ a little are cut to fit.
    """
    pull, compute = commit.pull or 0.0, commit.compute or 0.0
    asked = max(since, min(since + (commit.before or 0.0), now - pull - compute))
    begun = max(asked, granted)
    pulled = min(begun + pull, now)
    return Moments(asked, begun, pulled, min(pulled + compute, now))
