"""Trigger: do the committed contributions make an update?"""

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
