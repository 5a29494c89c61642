"""One worker's local rule with what it remembers."""

from typing import Any

import numpy as np

from psworker.local.portions import TicketBatches
from psworker.local.rule import Flats, Gradient, Result, Rule
from psworker.local.walk import Walk


class LocalWork:
    """Contribution after contribution; what one leaves behind counts from `keep` on, when it is committed.

    It belongs to one incarnation of a worker: an incarnation begins with
    nothing, as a newly started process would, and as replay has to assume.
    """

    def __init__(self, rule: Rule, incarnation: int = 0) -> None:
        self._rule = rule
        self._incarnation = incarnation
        self._memory: Any = None
        self._walk: Walk | None = None
        self._next: Any = None

    @property
    def steps(self) -> int:
        """Batches of a ticket."""
        return self._rule.steps

    @property
    def remembers(self) -> bool:
        return self._rule.remembers

    @property
    def roams(self) -> bool:
        """The rule takes its steps before it asks for a grant."""
        return self._rule.roams

    @property
    def roaming(self) -> bool:
        """As `roams`, and there are weights to take them from: not before the first contribution."""
        return self._rule.roams and self._memory is not None

    @property
    def walked(self) -> bool:
        """The steps of the next contribution are taken; it needs no batches."""
        return self._walk is not None

    def can_use(self, portion: TicketBatches) -> bool:
        """A contribution can be made of it: its steps are taken, or its batches are still available."""
        return self.walked or not portion.spent

    def ahead(self, gradient: Gradient, batches: Any) -> Walk:
        """Take the steps of the next ticket now. Of no use when what it returns is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            made = self._rule.ahead(self._memory, gradient, batches)
        self._walk = made if made.finite else None
        return made

    def contribute(self, weights: Flats, gradient: Gradient, batches: Any) -> Result:
        """What to push for a ticket that was granted `weights`; of no use when its norm is not finite.

        Numbers that are too large become infinite without a warning; the norm shows it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            result, self._next = self._rule.contribute(self._memory, self._walk, weights, gradient, batches)
        return result

    def keep(self) -> None:
        """The last contribution is committed."""
        self._memory, self._walk, self._next = self._next, None, None

    def renew(self, incarnation: int) -> None:
        """Forget everything, if this is another incarnation than before."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._memory = self._walk = self._next = None
