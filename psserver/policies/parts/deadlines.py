"""Deadline: when an update stops waiting for late workers, beside whatever trigger it has.

A deadline limits itself in three ways. It makes no update of less than a share of the present workers. It cancels no
more work than its budget allows. And it waits for a worker that has missed several updates in a row.
"""

from dataclasses import dataclass
from typing import Protocol

from psserver.policies.parts.view import View

MICROSECONDS = 1_000_000


class DeadlineRule(Protocol):
    """Decides when the coming update stops waiting. Called only while it has a contribution."""

    def at(self, view: View) -> int:
        """Return the time in whole microseconds of the job. `view.times` has what it is made of."""
        ...


@dataclass(frozen=True, slots=True)
class Grace(DeadlineRule):
    """A fixed time after the first commit of the round, in seconds."""

    seconds: float

    def at(self, view: View) -> int:
        times = view.known_times
        assert times.first is not None
        return times.first + round(self.seconds * MICROSECONDS)


@dataclass(frozen=True, slots=True)
class OwnPace(DeadlineRule):
    """Until every worker that is still computing is late by its own measure, from `least` to `most` seconds.

    A worker is late when its ticket is older than its mean duration plus four times the mean deviation (RFC 6298). One
    without a commit yet has `most` seconds.
    """

    least: float
    most: float

    def at(self, view: View) -> int:
        times = view.known_times
        least, most = round(self.least * MICROSECONDS), round(self.most * MICROSECONDS)
        latest = times.first or 0
        for opened in view.open.values():
            pace = times.paces.get(opened.worker)
            limit = most if pace is None else min(max(pace.limit, least), most)
            latest = max(latest, opened.at + limit)
        return latest


@dataclass(frozen=True, slots=True)
class Deadline:
    """A rule and its limits.

    `share`: least share of the present workers in an update that a deadline makes; 0: one contribution is enough.
    `budget`: share of all work that deadlines may cancel in the long run; `burst`: tickets that they may cancel beyond
    it. `patience`: missed updates in a row after which a worker is waited for; 0: never.
    """

    rule: DeadlineRule
    share: float = 0.5
    budget: float = 1.0
    burst: int = 0
    patience: int = 0

    def permits(self, view: View, cancelled: int) -> bool:
        """Whether the limits permit an update now that would cancel `cancelled` tickets."""
        if len(view.contributors()) < self.share * view.present_count():
            return False
        if cancelled and self.budget < 1 and cancelled > self.credit(view):
            return False
        return not self.patience or not any(
            missed >= self.patience and worker in view.members and view.members[worker].held
            for worker, missed in view.missed.items()
        )

    def credit(self, view: View) -> float:
        """Return the number of tickets that may be cancelled now. It is what another deadline has left, if there was
        one: a change of the policy earns nothing."""
        return float(self.burst) if view.credit is None else min(float(self.burst), view.credit)

    def settle(self, view: View, applied: int, cancelled: int) -> None:
        """Count an update of `applied` contributions that cancelled some tickets.

        Each applied contribution earns ``budget / (1 - budget)``, so that cancelled tickets are at most the share
        `budget` of all in the long run.
        """
        if self.budget < 1:
            earned = self.credit(view) + applied * self.budget / (1 - self.budget)
            view.credit = min(float(self.burst), earned) - cancelled
