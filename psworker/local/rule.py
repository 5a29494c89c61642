"""What a local rule is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from psworker.local.inner_steps import InnerSteps
from psworker.local.trainer import Flats, Gradient, Result


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a rule made of several gradients, in the form of one `Result`. `loss`: the mean over its batches."""

    flats: Flats
    loss: float
    norm: float
    samples: int


class Rule(Protocol):
    """Pure. What it remembers is a value: a rule returns the next one and leaves the former as it was,
    so that a ticket that comes to nothing leaves no trace.

    `steps`: batches of a ticket. `remembers`: contributions depend on earlier
    ones. `steps_before_pull`: between its tickets it has weights of its own, and takes
    its steps from there *before* it asks for a grant.
    """

    @property
    def steps(self) -> int:
        """Batches of one ticket."""
        ...

    @property
    def remembers(self) -> bool:
        """A contribution depends on those that were committed before."""
        ...

    @property
    def steps_before_pull(self) -> bool:
        """It takes steps on weights of its own before it pulls."""
        ...

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        """The steps of the next ticket. Only for a rule that takes them before it pulls, and only with a memory."""
        ...

    def payload(
        self,
        memory: Any,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Any]:
        """The payload for a ticket that was granted `weights`, and what is to be remembered once it is committed.

        `memory`: None at a worker's beginning. `taken`: what `take_steps` returned,
        if it was called; `batches` are not touched then. A norm that is not
        finite says that the payload is of no use; it is the norm
        of the first gradient that was not finite, and no batch behind it was read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One batch, one gradient: what servers expect by default."""

    trainable: tuple[int, ...]
    steps: ClassVar[int] = 1
    remembers: ClassVar[bool] = False
    steps_before_pull: ClassVar[bool] = False

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("a plain gradient is computed from pulled weights only")

    def payload(
        self,
        memory: Any,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Any]:
        (batch,) = batches
        return gradient(weights, batch), None
