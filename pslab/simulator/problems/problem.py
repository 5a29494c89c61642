"""The interface of problems, and the worker's trainer of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec
from pswire.model.tables import Keys, TableSpec, sums, unique
from psworker.local import ReadRows
from psworker.work import Unit, WorkUnits

Floats = NDArray[np.float32]
Parameters = Mapping[str, Floats]


class ProblemError(ValueError):
    """An option that a problem does not have or cannot use."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a batch's mean loss: one array per parameter."""

    values: Parameters
    loss: float
    samples: int


class Problem(Protocol):
    """A function of parameters and batches, without state."""

    def initial(self) -> Parameters:
        """Return the starting point, the same in every run: float32 arrays by name."""
        ...

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Any]:
        """Iterate over one worker's batches of one epoch."""
        ...

    def gradient(self, parameters: Parameters, batch: Any) -> Gradient:
        """Return loss and gradient of a batch at `parameters`."""
        ...

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return the metrics at `parameters`, by name."""
        ...


@runtime_checkable
class RowProblem(Protocol):
    """A problem with sparse tables. Rows are given for each id of `ids`, [*ids.shape, dim], and gradients come so."""

    def tables(self) -> Sequence[TableSpec]: ...

    def ids(self, batch: Any) -> Mapping[str, NDArray[np.int64]]:
        """Return the ids that a batch looks up, by table."""
        ...

    def gradient_rows(
        self, parameters: Parameters, batch: Any, rows: Mapping[str, Floats]
    ) -> tuple[Gradient, Mapping[str, Floats]]:
        """Return loss and gradient, and the gradient of each looked-up row by table."""
        ...

    def heldout(self) -> Any:
        """Return the batch that `evaluate_rows` measures."""
        ...

    def evaluate_rows(
        self, parameters: Parameters, batch: Any, rows: Mapping[str, Floats]
    ) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class NumpyResult:
    flats: list[Floats]
    loss: float
    norm: float
    samples: int
    rows: Mapping[str, tuple[Keys, Floats]] = field(default_factory=dict)


class NumpyTrainer:
    """The trainer of a problem. It has no state, so all workers can share it."""

    # Weights come as float32.
    narrow = False

    def __init__(self, problem: Problem, units: int = 0) -> None:
        """`units`: if above 0, the data is dealt as that many work units, unit i being the part of worker i.

        Raises ProblemError if there is no data for that number.
        """
        if units and next(problem.batches(units - 1, units, 0, 0), None) is None:
            raise ProblemError(
                f"simulation.units: the last of {units} units has no batch; expected no more units than samples"
            )
        self.problem = problem
        self._initial = dict(problem.initial())
        self._plan: Plan | None = None
        self.work = WorkUnits(units=units) if units else None
        self.tables = tuple(problem.tables()) if isinstance(problem, RowProblem) else ()

    @property
    def specs(self) -> list[tuple[VariableSpec, Floats]]:
        """The variables and their initial values."""
        return [(VariableSpec(name, values.shape), values) for name, values in self._initial.items()]

    def attach(self, plan: Plan) -> None:
        """Set how the variables lie on the servers. Call it before the first step."""
        self._plan = plan

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over (number, batch) of one worker's part of the data, from number `skip` on."""
        number = 0
        for epoch in range(epochs):
            for batch in self.problem.batches(worker_index, worker_count, seed, epoch):
                if number >= skip:
                    yield number, batch
                number += 1

    def unit_batches(self, worker_index: int, seed: int) -> Callable[[Unit], Iterator[Any]]:
        """Return a function from a work unit to its batches."""
        assert self.work is not None, "the problem deals no work units"
        units = self.work.count
        return lambda unit: self.problem.batches(unit.index, units, seed, unit.epoch)

    def parameters(self, flats: list[Floats]) -> dict[str, Floats]:
        """Return the variables by name, from one flat array per server."""
        assert self._plan is not None, "attach(plan) comes first"
        return dict(zip(self._initial, self._plan.gather(flats), strict=True))

    def step(self, flats: list[Floats], batch: Any) -> NumpyResult:
        """Return loss and gradient of one batch at these weights, one flat array per server."""
        gradient = self.problem.gradient(self.parameters(flats), batch)
        assert self._plan is not None
        payloads = self._plan.scatter([gradient.values[name] for name in self._initial])
        squares = sum(float(np.vdot(values, values)) for values in gradient.values.values())
        return NumpyResult(payloads, gradient.loss, float(np.sqrt(squares)), gradient.samples)

    def evaluate(self, flats: list[Floats]) -> dict[str, float]:
        """Return the problem's metrics at these weights; NaN or infinite ones for a model that has diverged."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.problem.evaluate(self.parameters(flats))

    # Tables

    def keys(self, batch: Any) -> dict[str, Keys]:
        """Return the keys that a batch needs, by table."""
        assert isinstance(self.problem, RowProblem)
        return {name: unique(ids)[0] for name, ids in self.problem.ids(batch).items()}

    def step_rows(self, flats: list[Floats], batch: Any, rows: Mapping[str, Floats]) -> NumpyResult:
        """Compute `step` with the rows of ``keys(batch)``."""
        problem = self.problem
        assert isinstance(problem, RowProblem) and self._plan is not None
        looked, several = self._looked_up(batch, rows)
        gradient, by_id = problem.gradient_rows(self.parameters(flats), batch, looked)
        found = {}
        for name, (keys, inverse) in several.items():
            values = np.asarray(by_id[name], np.float32)
            found[name] = keys, sums(inverse, values.reshape(inverse.size, -1), keys.size)
        arrays = [*gradient.values.values(), *(values for _, values in found.values())]
        squares = sum(float(np.vdot(values, values)) for values in arrays)
        payloads = self._plan.scatter([gradient.values[name] for name in self._initial])
        return NumpyResult(payloads, gradient.loss, float(np.sqrt(squares)), gradient.samples, found)

    def evaluate_rows(self, flats: list[Floats], read: ReadRows) -> dict[str, float]:
        """Compute `evaluate` with rows that `read` returns by key."""
        problem = self.problem
        assert isinstance(problem, RowProblem)
        batch = problem.heldout()
        looked, _ = self._looked_up(batch, read(self.keys(batch)))
        with np.errstate(over="ignore", invalid="ignore"):
            return problem.evaluate_rows(self.parameters(flats), batch, looked)

    def _looked_up(
        self, batch: Any, rows: Mapping[str, Floats]
    ) -> tuple[dict[str, Floats], dict[str, tuple[Keys, NDArray[np.int32]]]]:
        """Return a row for each id, and the keys and positions of the ids."""
        assert isinstance(self.problem, RowProblem)
        ids = self.problem.ids(batch)
        several = {name: unique(each) for name, each in ids.items()}
        looked = {
            name: rows[name][inverse].reshape(*ids[name].shape, -1) for name, (_, inverse) in several.items()
        }
        return looked, several
