"""One worker's local rule with its memory, and the batches of each ticket that it works on."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from psworker.local.inner import InnerSteps
from psworker.local.rule import Flats, Gradient, Result, WorkerRule

NONFINITE_LIMIT = 10
"""A worker gives up after this many tickets in a row without a finite gradient."""

Numbered = tuple[int, Any]


class ReadAhead:
    """Batches with the next one read in advance: `following`, None at the end."""

    __slots__ = ("_batches", "following")

    def __init__(self, batches: Iterator[Numbered]) -> None:
        self._batches = batches
        self.following: Numbered | None = next(batches, None)

    def take(self) -> Numbered:
        """Return the next batch. Only while `following` is not None."""
        taken, self.following = self.following, next(self._batches, None)
        assert taken is not None
        return taken


class TicketBatches:
    """The batches of one ticket.

    A single batch can be iterated again after its ticket was cancelled; several batches only once, because keeping them
    could fill the memory.
    """

    __slots__ = ("_cache", "_left", "_repeats", "_source", "_steps", "first", "last")

    def __init__(self, source: ReadAhead, steps: int) -> None:
        assert source.following is not None
        self._source = source
        self._repeats = steps == 1
        self._steps = self._left = steps
        self._cache: list[Any] = []
        # Numbers of the first batch, and of the last that was read.
        self.first = self.last = source.following[0]

    def __iter__(self) -> Iterator[Any]:
        yield from self._cache
        while self._left and self._source.following is not None:
            self._left -= 1
            self.last, batch = self._source.take()
            if self._repeats:
                self._cache.append(batch)
            yield batch

    @property
    def spent(self) -> bool:
        """Whether batches were read that cannot be read again."""
        return not self._repeats and self._left < self._steps

    @property
    def more(self) -> bool:
        """Whether there is data after the batches that were read."""
        return self._source.following is not None

    @property
    def following(self) -> Any:
        """The batch after those that were read; None if there is none."""
        return None if self._source.following is None else self._source.following[1]

    @property
    def followed(self) -> bool:
        """Whether all its batches are read and data follows, so that another ticket will be needed."""
        return not self._left and self.more

    def pass_over(self) -> None:
        """Read the remaining batches without using them."""
        if self._left:
            for _ in self:
                pass


def by_ticket(batches: Iterable[Numbered], steps: int) -> Iterator[TicketBatches]:
    """Yield the batches of each ticket: `steps` of them, perhaps fewer for the last.

    Batches are read when they are needed, one ahead, so they need not fit into memory together. The rest of an
    interrupted ticket is skipped when the next one is asked for: each begins a multiple of `steps` after the first
    batch.
    """
    source = ReadAhead(iter(batches))
    while source.following is not None:
        ticket = TicketBatches(source, steps)
        yield ticket
        ticket.pass_over()


class LocalWork:
    """Makes one payload after another by a `rule`. What a payload leaves in the memory counts from `keep` on.

    The memory belongs to one incarnation of a worker: every incarnation begins without, as a new process would, and as
    replay has to assume.
    """

    def __init__(self, rule: WorkerRule, incarnation: int = 0) -> None:
        self.rule = rule
        self._incarnation = incarnation
        self._memory: Any = None
        self._taken: InnerSteps | None = None
        self._next: Any = None

    @property
    def has_own_weights(self) -> bool:
        """Whether the rule takes steps before it pulls and has weights to start from: not before the first payload."""
        return self.rule.steps_before_pull and self._memory is not None

    @property
    def steps_taken(self) -> bool:
        """Whether all steps of the next payload are taken, so that it needs no batches."""
        return self.rule.steps_before_pull and self._taken is not None

    def can_use(self, batches: TicketBatches) -> bool:
        """Whether a payload can be made of the batches: steps of theirs are taken, or all can still be read."""
        return self._taken is not None or not batches.spent

    def take_steps(self, gradient: Gradient, batches: Any) -> InnerSteps:
        """Take the steps of the next ticket now. Useless if the result is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            made = self.rule.take_steps(self._memory, gradient, batches)
        self._taken = made if made.finite else None
        return made

    def go_on(self, gradient: Gradient, batches: Any) -> InnerSteps:
        """Take the first `overlap` steps of the next ticket while the last payload travels. `keep` takes the result."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.rule.take_steps(self._next, gradient, batches)

    def payload(self, weights: Flats, gradient: Gradient, batches: Any, version: int = 0) -> Result:
        """Return what to push for a ticket that was granted `weights`, which are `version`. Useless if its norm is not
        finite.

        Numbers that are too large become infinite without a warning; the norm shows it.
        """
        taken = self._taken
        if not self.steps_taken:
            # The rest of the batches is read now, so these steps are of no use for another payload.
            self._taken = None
        with np.errstate(over="ignore", invalid="ignore"):
            result, self._next = self.rule.payload(self._memory, taken, weights, gradient, batches, version)
        return result

    def keep(self, taken: InnerSteps | None = None) -> None:
        """Keep the memory that goes with the last payload, which is committed. `taken`: what `go_on` returned."""
        self._memory, self._taken, self._next = self._next, taken, None

    def renew(self, incarnation: int) -> None:
        """Clear the memory if this is another incarnation than before."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._memory = self._taken = self._next = None
