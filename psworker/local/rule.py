"""The interfaces between a worker and its computation: the trainer that computes gradients, and the local rule.

Real workers, simulated ones and replay share them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec
from psworker.local.inner import InnerSteps

Floats = NDArray[np.float32]
# One array per server: its trainable part, then its state part.
Flats = list[Floats]


class Result(Protocol):
    """The result of a computation, to push."""

    @property
    def flats(self) -> Flats:
        """One flat payload per server: gradient, then changes of the state."""
        ...

    @property
    def loss(self) -> float:
        """Mean loss over the ticket's batches."""
        ...

    @property
    def norm(self) -> float:
        """L2 norm of the gradients of all servers, before rounding."""
        ...

    @property
    def samples(self) -> int:
        """The number of samples that the payload was averaged over."""
        ...


Gradient = Callable[[Flats, Any], Result]
"""Returns the gradient of a batch's mean loss at some weights, which it must not change."""


class Trainer(Protocol):
    """A model with its data, such as `psworker.tensorflow.Trainer` or `pslab.simulator.problems.NumpyTrainer`."""

    @property
    def specs(self) -> Sequence[tuple[VariableSpec, NDArray[Any]]]:
        """The model's variables with their initial values."""
        ...

    @property
    def narrow(self) -> bool:
        """Whether it also takes weights in the wire dtype; it then answers in the same dtype."""
        ...

    def attach(self, plan: Plan) -> None:
        """Take the plan that lays out `flats`. Comes before `batches`, `step` and `evaluate`."""
        ...

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, batch) of this worker's part of the data, from number `skip` on."""
        ...

    def step(self, flats: list[NDArray[Any]], batch: Any) -> Result:
        """Return loss and gradient of one batch at these weights, one flat array per server."""
        ...

    def evaluate(self, flats: Flats) -> dict[str, float]:
        """Return metrics at these weights, by name; empty if there is nothing to evaluate."""
        ...


@dataclass(frozen=True, slots=True)
class Contribution:
    """A `Result` that a rule makes of several gradients. `loss`: the mean over its batches."""

    flats: Flats
    loss: float
    norm: float
    samples: int


class Rule(Protocol):
    """A pure local rule. Its memory is a value: it returns the next one and leaves the former unchanged, so a ticket
    that fails leaves no trace."""

    @property
    def steps(self) -> int:
        """Batches of one ticket."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether a contribution depends on those that were committed before."""
        ...

    @property
    def steps_before_pull(self) -> bool:
        """Whether it keeps weights between its tickets, and takes its steps from there before it asks for a grant."""
        ...

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        """Take the steps of the next ticket. Only for a rule with `steps_before_pull`, and only with a memory."""
        ...

    def payload(
        self,
        memory: Any,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Any]:
        """Return the payload for a ticket that was granted `weights`, and the memory once it is committed.

        `memory`: None when a worker begins. `taken`: the result of `take_steps`, if that was called; `batches` are then
        not read. A norm that is not finite means that the payload is useless: it is the norm of the first gradient that
        was not finite, and no later batch was read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One batch, one gradient: the default."""

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
