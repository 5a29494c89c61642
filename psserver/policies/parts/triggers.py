"""Trigger: do the committed contributions make an update? And which open tickets are cancelled by it."""

from dataclasses import dataclass
from typing import Protocol

from psserver.policies.parts.view import View


class Trigger(Protocol):
    """Decides when what is committed makes an update."""

    def fires(self, view: View) -> bool:
        """True when the buffer, which is not empty, is to become the next version."""
        ...


@dataclass(frozen=True, slots=True)
class Everyone(Trigger):
    """Every active worker but `backup` of them has contributed.

    The number needed is ``max(workers, most ever active) - backup``, or all
    that are left when fewer are: a lost worker uses up a backup first. The
    contribution of one that has left counts, but for nobody else's.
    """

    workers: int
    backup: int = 0

    def fires(self, view: View) -> bool:
        present = view.present_count()
        needed = min(max(self.workers, view.peak, present) - self.backup, present)
        return len(view.contributors()) >= max(1, needed)


@dataclass(frozen=True, slots=True)
class Distinct(Trigger):
    """`count` different workers have contributed, or all that are left when fewer are.

    Needs a gate that holds contributors, such as WaitForUpdate, so that no worker's gradient counts twice.
    """

    count: int

    def fires(self, view: View) -> bool:
        return len(view.contributors()) >= min(self.count, view.present_count())


@dataclass(frozen=True, slots=True)
class Count(Trigger):
    """Any `count` contributions, or what there is once nothing more can come."""

    count: int

    def fires(self, view: View) -> bool:
        return len(view.buffer) >= self.count or view.draining()


@dataclass(frozen=True, slots=True)
class CancelStale:
    """Those that are `age` versions behind: their workers stop, and start anew from the current version.

    1 is all that started before the update: K-sync and backup workers (Dutta
    et al. 2018). Ringmaster "with stops" waits for more.
    """

    age: int = 1

    def void(self, view: View) -> list[int]:
        """Their ticket numbers, oldest first."""
        oldest = view.oldest_base()
        if oldest is None or view.version - oldest < self.age:
            return []
        # Grants come in the order of their versions: behind the first that is young enough all are.
        tickets = []
        for opened in view.open.values():
            if view.version - opened.base < self.age:
                break
            tickets.append(opened.ticket)
        return tickets
