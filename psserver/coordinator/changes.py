"""Changes of the policy while a job trains: those that the experiment plans or a controller proposes, the one that
waits, the overlap after one.

A change takes effect when no contribution waits for an update. The tickets that are open then are the overlap: the
former policy granted them, and the new one judges them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psserver.coordinator.progress import Facts, measured
from psserver.coordinator.terms import Planned
from psserver.policies import Policy
from pswire.records import to_plain

# Who asks for a change that the experiment file plans.
PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Change:
    """A change that waits. `by`: who asked for it; `why`: the reason that was given. `rate`: the factor of the job's
    learning rate from then on; None: as it is. `inputs`: what a controller decided by; None: it is no controller's."""

    policy: Policy
    by: str
    why: str
    rate: float | None = None
    inputs: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class WaitingState:
    """The saved form of a change that waits, which is never a controller's."""

    name: str
    knobs: dict[str, object]
    by: str
    why: str
    rate: float | None


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The saved form of `Changes`. `controller`: the state of the job's controller; empty if it has none.

    `ask_from`: the version from which on it is worth to ask again whether the next planned change is due.
    """

    # The configuration of the policy that the job began with; empty if that still decides.
    began_with: dict[str, object] = field(default_factory=dict)
    waiting: WaitingState | None = None
    overlap: list[int] = field(default_factory=list)
    unsettled: bool = False
    planned: int = 0
    rate: float = 1.0
    controller: dict[str, object] = field(default_factory=dict)
    ask_from: int = 0


class Changes:
    """The changes of one job. `waiting`: at most one. `overlap`: tickets from before the newest change, while
    `unsettled`. `planned`: how many changes of the plan were taken up. `rate`: factor of the learning rate that changes
    have set."""

    def __init__(self, plan: Sequence[Planned] = ()) -> None:
        self._plan = tuple(plan)
        self.waiting: Change | None = None
        self.unsettled = False
        self.overlap: set[int] = set()
        self.planned = 0
        self.rate = 1.0
        # The version from which on it is worth to ask again whether the next planned change is due.
        self._ask_from = 0
        # The configuration of the policy that the job began with; empty if that still decides.
        self.began_with: dict[str, object] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is left over or is planned."""
        return self.waiting is None and not self.unsettled and self.planned >= len(self._plan)

    @property
    def next(self) -> Planned | None:
        """The next change of the plan."""
        return self._plan[self.planned] if self.planned < len(self._plan) else None

    def due(self, facts: Facts) -> Planned | None:
        """Return the next change of the plan if its time has come."""
        planned = self.next
        if planned is None or facts.version < self._ask_from:
            return None
        if planned.versions:
            return planned if facts.version >= planned.versions else None
        # While the length of the job is unknown, no share of it is done.
        found = measured(facts)
        if found is not None and found.total > 0 and 100 * found.done >= planned.percent * found.total:
            return planned
        # Measuring takes time in proportion to the workers.
        self._ask_from = facts.version + 1 + len(facts.roster.tallies) // 16
        return None

    def state(self) -> "ChangeState":
        """Return all but the plan, as plain data."""
        waiting = self.waiting
        return ChangeState(
            self.began_with,
            None
            if waiting is None
            else WaitingState(
                waiting.policy.name, to_plain(waiting.policy.knobs), waiting.by, waiting.why, waiting.rate
            ),
            sorted(self.overlap),
            self.unsettled,
            self.planned,
            self.rate,
            ask_from=self._ask_from,
        )

    def restore(self, state: "ChangeState", waiting: Policy | None) -> None:
        """Restore a saved state. `waiting`: the policy of the change that waits, built anew."""
        self.began_with, self.planned = state.began_with, state.planned
        self.overlap, self.unsettled, self.rate = set(state.overlap), state.unsettled, state.rate
        self._ask_from = state.ask_from
        if waiting is not None and state.waiting is not None:
            self.waiting = Change(waiting, state.waiting.by, state.waiting.why, state.waiting.rate)
