"""Trigger: do the committed contributions make an update? And which open tickets does the update cancel?"""

from dataclasses import dataclass
from typing import Protocol

from psserver.policies.parts.view import View


class Trigger(Protocol):
    """Decides when the committed contributions make an update."""

    def fires(self, view: View) -> bool:
        """Whether the buffer, which is not empty, becomes the next version."""
        ...


@dataclass(frozen=True, slots=True)
class Everyone(Trigger):
    """Every active worker but `backup` of them has contributed.

    The number needed is ``max(workers, most ever active) - backup``, or all that are left if they are fewer: a lost
    worker uses up a backup first. The contribution of a worker that has left counts as its own only.
    """

    workers: int
    backup: int = 0

    def fires(self, view: View) -> bool:
        present = view.present_count()
        needed = min(max(self.workers, view.peak, present) - self.backup, present)
        return len(view.contributors()) >= max(1, needed)


@dataclass(frozen=True, slots=True)
class Distinct(Trigger):
    """`count` different workers have contributed, or all that are left if they are fewer.

    Needs a gate that holds contributors, such as WaitForUpdate, so that no worker contributes twice.
    """

    count: int

    def fires(self, view: View) -> bool:
        return len(view.contributors()) >= min(self.count, view.present_count())


@dataclass(frozen=True, slots=True)
class Count(Trigger):
    """Any `count` contributions, or the rest once no more can come."""

    count: int

    def fires(self, view: View) -> bool:
        return len(view.buffer) >= self.count or view.draining()


@dataclass(frozen=True, slots=True)
class CancelStale:
    """Cancels tickets that are `age` versions behind: their workers start again from the current version.

    An age of 1 cancels all that started before the update: K-sync and backup workers (Dutta
    et al. 2018). Ringmaster "with stops" has a greater age.
    """

    age: int = 1

    def void(self, view: View) -> list[int]:
        """Return the numbers of the tickets to cancel, oldest first."""
        oldest = view.oldest_base()
        if oldest is None or view.version - oldest < self.age:
            return []
        # Open tickets are in the order of their versions: all after the first young one are young.
        tickets = []
        for opened in view.open.values():
            if view.version - opened.base < self.age:
                break
            tickets.append(opened.ticket)
        return tickets
