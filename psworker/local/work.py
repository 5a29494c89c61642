"""One worker's local rule with what it remembers."""

from typing import Any

import numpy as np

from psworker.local.inner_steps import InnerSteps
from psworker.local.rule import Rule
from psworker.local.ticket_batches import TicketBatches
from psworker.local.trainer import Flats, Gradient, Result

NONFINITE_LIMIT = 10
"""So many tickets in a row without a finite gradient are no accident: a worker gives up."""


class LocalWork:
    """Payload after payload; what one leaves behind counts from `keep` on, when it is committed.

    It belongs to one incarnation of a worker: an incarnation begins with
    nothing, as a newly started process would, and as replay has to assume.
    """

    def __init__(self, rule: Rule, incarnation: int = 0) -> None:
        self._rule = rule
        self._incarnation = incarnation
        self._memory: Any = None
        self._taken: InnerSteps | None = None
        self._next: Any = None

    @property
    def steps(self) -> int:
        """Batches of a ticket."""
        return self._rule.steps

    @property
    def remembers(self) -> bool:
        """A contribution depends on those that were committed before."""
        return self._rule.remembers

    @property
    def steps_before_pull(self) -> bool:
        """The rule takes its steps before it asks for a grant."""
        return self._rule.steps_before_pull

    @property
    def has_own_weights(self) -> bool:
        """As `steps_before_pull`, and there are weights to take them from: not before the first payload."""
        return self._rule.steps_before_pull and self._memory is not None

    @property
    def steps_taken(self) -> bool:
        """The steps of the next payload are taken; it needs no batches."""
        return self._taken is not None

    def can_use(self, batches: TicketBatches) -> bool:
        """A payload can be made of them: their steps are taken, or they can still be read."""
        return self.steps_taken or not batches.spent

    def take_steps(self, gradient: Gradient, batches: Any) -> InnerSteps:
        """Take the steps of the next ticket now. Of no use when what it returns is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            made = self._rule.take_steps(self._memory, gradient, batches)
        self._taken = made if made.finite else None
        return made

    def payload(self, weights: Flats, gradient: Gradient, batches: Any) -> Result:
        """What to push for a ticket that was granted `weights`; of no use when its norm is not finite.

        Numbers that are too large become infinite without a warning; the norm shows it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            result, self._next = self._rule.payload(self._memory, self._taken, weights, gradient, batches)
        return result

    def keep(self) -> None:
        """The last payload is committed."""
        self._memory, self._taken, self._next = self._next, None, None

    def renew(self, incarnation: int) -> None:
        """Forget everything, if this is another incarnation than before."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._memory = self._taken = self._next = None
