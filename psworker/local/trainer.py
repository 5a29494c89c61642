"""What computes gradients: the one interface of real workers, simulated ones and replay."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec

Floats = NDArray[np.float32]
# One array per server: its trainable part, then its state part.
Flats = list[Floats]


class Result(Protocol):
    """`flats`: [gradient | change of the state] per server; `norm`: L2, of the gradients of all servers."""

    @property
    def flats(self) -> Flats:
        """What is pushed: one flat payload per server."""
        ...

    @property
    def loss(self) -> float:
        """Mean loss over the ticket's batches."""
        ...

    @property
    def norm(self) -> float:
        """Euclidean norm of the payload before rounding."""
        ...

    @property
    def samples(self) -> int:
        """Over how many samples the payload was averaged."""
        ...


Gradient = Callable[[Flats, Any], Result]
"""From weights and a batch to the gradient of its mean loss. It must not change the weights."""


class Trainer(Protocol):
    """A model with its data. `psworker.tensorflow.Trainer` is one, `pslab.simulator.problems.NumpyTrainer` another."""

    @property
    def specs(self) -> Sequence[tuple[VariableSpec, NDArray[Any]]]:
        """The model's variables with their initial values."""
        ...

    @property
    def narrow(self) -> bool:
        """It takes weights in the wire dtype, too, and answers in the dtype that they came in."""
        ...

    def attach(self, plan: Plan) -> None:
        """Comes before `batches`, `step` and `evaluate`, whose `flats` are laid out by `plan`."""
        ...

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, Any]]:
        """(number, batch) of this worker's part of the data, from number `skip` on."""
        ...

    def step(self, flats: list[NDArray[Any]], batch: Any) -> Result:
        """Loss and gradient of one batch at these weights, which are one flat array per server."""
        ...

    def evaluate(self, flats: Flats) -> dict[str, float]:
        """Metrics at these weights, by name; none where there is nothing to evaluate."""
        ...
