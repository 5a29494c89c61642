"""What a local rule is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from psworker.local.walk import Walk

Floats = NDArray[np.float32]
# One array per server: its trainable part, then its state part.
Flats = list[Floats]


class Result(Protocol):
    """`flats`: [gradient | change of the state] per server; `norm`: L2, of the gradients of all servers."""

    @property
    def flats(self) -> Flats: ...
    @property
    def loss(self) -> float: ...
    @property
    def norm(self) -> float: ...
    @property
    def samples(self) -> int: ...


Gradient = Callable[[Flats, Any], Result]
"""From weights and a batch to the gradient of its mean loss. It must not change the weights."""


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
    ones. `roams`: between its tickets it has weights of its own, and takes its
    steps from there *before* it asks for a grant.
    """

    @property
    def steps(self) -> int: ...
    @property
    def remembers(self) -> bool: ...
    @property
    def roams(self) -> bool: ...

    def ahead(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> Walk:
        """The steps of the next ticket. Only for a rule that roams, and only with a memory."""
        ...

    def contribute(
        self, memory: Any, walked: Walk | None, weights: Flats, gradient: Gradient, batches: Iterable[Any]
    ) -> tuple[Result, Any]:
        """The contribution from `weights`, and what is to be remembered once it is committed.

        `memory`: None at a worker's beginning. `walked`: what `ahead` returned,
        if it was called; `batches` are not touched then. A norm that is not
        finite says that the contribution is good for nothing; it is the norm
        of the first gradient that was not finite, and no batch behind it was read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One batch, one gradient: what servers expect by default."""

    trainable: tuple[int, ...]
    steps: ClassVar[int] = 1
    remembers: ClassVar[bool] = False
    roams: ClassVar[bool] = False

    def ahead(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> Walk:
        raise TypeError("a plain gradient is computed from pulled weights only")

    def contribute(
        self, memory: Any, walked: Walk | None, weights: Flats, gradient: Gradient, batches: Iterable[Any]
    ) -> tuple[Result, Any]:
        (batch,) = batches
        return gradient(weights, batch), None
