"""The interfaces between a worker and its computation: the trainer that computes gradients, and the local rule.

Real workers, simulated ones and replay share them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec
from pswire.model.tables import Keys, TableSpec
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
    """A model with its data, such as `psworker.keras.jobs.trainer.JobTrainer`, or `NumpyTrainer` of the simulator."""

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


class RowResult(Result, Protocol):
    """The result of a computation with rows of tables."""

    @property
    def rows(self) -> Mapping[str, tuple[Keys, Floats]]:
        """By table: sorted unique keys, and the gradient of each row, [n, dim]. `norm` covers them."""
        ...


ReadRows = Callable[[Mapping[str, Keys]], Mapping[str, Floats]]
"""Returns rows by table in the order of sorted unique keys."""


@runtime_checkable
class RowTrainer(Protocol):
    """A trainer whose model looks up rows of sparse tables. `tables`: empty if this one has none after all."""

    tables: Sequence[TableSpec]

    def keys(self, batch: Any) -> Mapping[str, Keys]:
        """Return the sorted unique keys of the rows that a batch needs, by table. Called ahead of `step_rows`."""
        ...

    def step_rows(self, flats: list[NDArray[Any]], batch: Any, rows: Mapping[str, Floats]) -> RowResult:
        """Compute `step` with `rows`: by table, float32 [n, dim] in the order of ``keys(batch)``."""
        ...

    def evaluate_rows(self, flats: Flats, read: ReadRows) -> dict[str, float]:
        """Compute `evaluate`; `read` returns the rows of sorted unique keys by table, and makes none."""
        ...


def tables_of(trainer: Trainer) -> tuple[TableSpec, ...]:
    """Return the sparse tables of a trainer's model."""
    # Asked in every step, where `isinstance` of a protocol takes longer than a small gradient.
    return tuple(getattr(trainer, "tables", ()))


def gradient_of(trainer: Trainer, read: ReadRows) -> Gradient:
    """Return the trainer's step at weights whose rows `read` returns."""
    if not tables_of(trainer):
        return trainer.step
    assert isinstance(trainer, RowTrainer)
    several: RowTrainer = trainer
    return lambda flats, batch: several.step_rows(flats, batch, read(several.keys(batch)))


def evaluated(trainer: Trainer, flats: Flats, read: ReadRows) -> dict[str, float]:
    """Return the trainer's metrics at weights whose rows `read` returns."""
    if not tables_of(trainer):
        return trainer.evaluate(flats)
    assert isinstance(trainer, RowTrainer)
    return trainer.evaluate_rows(flats, read)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A `Result` that a rule makes of several gradients. `loss`: the mean over its batches."""

    flats: Flats
    loss: float
    norm: float
    samples: int


class WorkerRule(Protocol):
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

    @property
    def overlap(self) -> int:
        """How many of a ticket's batches need no pulled weights, so that they may travel meanwhile."""
        ...

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        """Take the steps of the next ticket that need no pulled weights: all with `steps_before_pull`, or the first
        `overlap`. Only for such rules, and only with a memory."""
        ...

    def payload(
        self,
        memory: Any,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Any]:
        """Return the payload for a ticket that was granted `weights`, and the memory once it is committed.

        `version`: the number of the granted version.
        `memory`: None when a worker begins. `taken`: the result of `take_steps`, if that was called; `batches` are then
        those that are left. A norm that is not finite means that the payload is useless: it is the norm of the first
        gradient that was not finite, and no later batch was read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One batch, one gradient: the default."""

    trainable: tuple[int, ...]
    steps: ClassVar[int] = 1
    remembers: ClassVar[bool] = False
    steps_before_pull: ClassVar[bool] = False
    overlap: ClassVar[int] = 0

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("a plain gradient is computed from pulled weights only")

    def payload(
        self,
        memory: Any,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Any]:
        (batch,) = batches
        return gradient(weights, batch), None
