"""What computes gradients in a simulated worker. The interface is that of the real worker's loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.plan import Plan, VariableSpec

Floats = NDArray[np.float32]


class Result(Protocol):
    @property
    def flats(self) -> list[Floats]: ...
    @property
    def loss(self) -> float: ...
    @property
    def norm(self) -> float: ...
    @property
    def samples(self) -> int: ...


class Trainer(Protocol):
    """`psworker.tensorflow.Trainer` is one, `problems.NumpyTrainer` another."""

    @property
    def specs(self) -> Sequence[tuple[VariableSpec, NDArray[Any]]]: ...

    def attach(self, plan: Plan) -> None: ...

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, Any]]: ...

    def step(self, flats: list[Floats], batch: Any) -> Result: ...

    def evaluate(self, flats: list[Floats]) -> dict[str, float]: ...


# From a worker's index to its trainer. Workers may share one that keeps nothing between steps.
TrainerFactory = Callable[[int], Trainer]
