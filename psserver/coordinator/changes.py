"""Changes of the policy while a job trains: those that the experiment plans, the one that waits, the overlap after one.

A change takes effect when no contribution waits for an update. The tickets that are open then are the overlap: the
former policy granted them, and the new one judges them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from psserver.coordinator.inputs import ChangeAsked
from psserver.coordinator.terms import Planned

# Who asks for a change that the experiment file plans.
PLAN = "plan"


@dataclass(slots=True)
class PolicyChanges:
    """The changes of one job. `waiting`: at most one. `overlap`: tickets from before the newest change, while
    `unsettled`. `planned`: how many changes of the plan were taken up. `rate`: factor of the learning rate that changes
    have set. `began_with`: the configuration of the policy that the job began with; empty if that still decides."""

    began_with: dict[str, object] = field(default_factory=dict)
    waiting: ChangeAsked | None = None
    overlap: set[int] = field(default_factory=set)
    unsettled: bool = False
    planned: int = 0
    rate: float = 1.0

    def idle(self, plan: Sequence[Planned]) -> bool:
        """Return whether nothing waits, is left over or is planned."""
        return self.waiting is None and not self.unsettled and self.planned >= len(plan)
