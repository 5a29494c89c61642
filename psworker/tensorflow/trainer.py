"""`Trainer`: a job's model, data and loss, in the form that the worker's loop needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pswire.model.plan import Plan, VariableSpec
from pswire.model.tables import Floats, Keys, TableSpec
from pswire.model.variables import WholeTables
from psworker.backends import ModelError, StepResult
from psworker.backends.keras import warn_of_lost, warn_of_reduction
from psworker.backends.lookups import LookedUp, by_keys
from psworker.backends.tensorflow.repeatable import warn_of_sources
from psworker.backends.tensorflow.rows import Finder, Tables
from psworker.backends.tensorflow.specs import Body, Traces
from psworker.backends.tensorflow.step import Flat, FlatStep
from psworker.backends.tensorflow.variables import collect, remote_layers
from psworker.function import function_of
from psworker.job import Job
from psworker.job.errors import JobError, blame
from psworker.job.job import OptimizerState
from psworker.local import ReadRows
from psworker.tensorflow.batches import built, declared_work, grouped_batches, known_length, unit_batches
from psworker.tensorflow.device import set_up
from psworker.tensorflow.evaluation import evaluate, measured_names
from psworker.tensorflow.export import NO_TABLES, save_model
from psworker.tensorflow.initial import load
from psworker.tensorflow.objectives.losses import keras_loss
from psworker.tensorflow.objectives.processing import Processing
from psworker.tensorflow.objectives.training import Training
from psworker.work import Unit, WorkUnits


@dataclass(frozen=True)
class Drawing:
    """A batch for a model that draws random numbers; `of`: the numbers that decide which."""

    batch: Any
    of: tuple[int, ...]


def _bare(batch: Any) -> Any:
    found = batch.batch if isinstance(batch, Drawing) else batch
    return found.result() if isinstance(found, Future) else found


class Trainer:
    """Made, then asked for `specs`, then attached to a plan, then `batches` and `step` in turn.

    `seed` decides the initial values, the same in every worker. `device` is
    "auto", "cpu" or "gpu:N". `deterministic` makes results independent of the
    number of cores and of the run, on one thread (see `make_deterministic`,
    which concerns the whole process). Raises DeviceError, and JobError wherever the user's
    code raises or returns something that cannot be trained.
    """

    #: Weights may come in the wire dtype; payloads go in the dtype in which the weights came.
    narrow = True

    def __init__(self, job: Job, *, device: str = "auto", seed: int = 0, deterministic: bool = False) -> None:
        self.device = set_up(device, deterministic=deterministic)
        self.job = job
        #: The epoch of its data, from 0, in which the newest batch lies that was read.
        self.epoch = 0
        # Of all epochs, as committed; 0 until it is known.
        self.total_batches = 0
        self._name = type(job).__name__
        # Keras numbers the layers' names within a process; begin at the beginning, as every worker does.
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed % 2**32)
        with blame(f"model() of job {self._name}"):
            made = job.model()
        with blame(f"dataset() of job {self._name}"):
            self.model = built(job, made, seed)
        with blame(f"the model of job {self._name}"):
            self._training = Training(job, self.model)
        self._variables = collect(self.model)
        self._fresh = self.memory()
        self._tables = self._find_tables()
        #: The sparse tables that the model's layers look up.
        self.tables: Sequence[TableSpec] = self._tables.specs
        self._finder: Finder | None = None
        # Finds keys of a batch while the one before computes.
        self._ahead = ThreadPoolExecutor(1, "ids-ahead") if self.tables else None
        self._process = Processing(job, self.optimizer, self._as_the_user_knows_them())
        self._step: FlatStep | None = None
        self._traces: list[Traces] = []
        self._plan: Plan | None = None
        self._dtypes: tuple[str, ...] = ("float32",)

    @property
    def specs(self) -> list[tuple[VariableSpec, np.ndarray]]:
        """Every travelling variable with its present value (float32, of its shape)."""
        return list(zip(self._variables.specs, self._variables.values(), strict=True))

    def begin_with(self, path: Path) -> None:
        """Load the values in this file, before `specs` are asked for: see `initial.load`."""
        load(path, self._variables)

    @property
    def function(self) -> str:
        """What decides the model's function beside its variables: see `psworker.function`."""
        return function_of(self.model, self.job.loss)

    @property
    def optimizer(self) -> Any:
        """The Keras optimizer that the model was compiled with, or the job's; None where neither names one."""
        return self._training.optimizer

    def clip(self, here: bool) -> None:
        """Whether gradients are clipped here, as the optimizer says, or by the server. Before the first batch."""
        self._process.clips = here

    @property
    def trained(self) -> list[tuple[Any, str]]:
        """The trained `tf.Variable`s, each with the name by which the servers know it."""
        pairs = zip(self._variables.variables, self._variables.specs, strict=True)
        return [(variable, spec.name) for variable, spec in pairs][: self._variables.trainable]

    def _together(self) -> bool:
        """Nobody looks at the gradients of tables one by one."""
        job, model = self.job, self.model
        own_step = isinstance(model, keras.Model) and type(model).train_step is not keras.Model.train_step
        looks = type(job).gradients is not Job.gradients or getattr(
            self._training.optimizer, "clipnorm", None
        )
        return not own_step and not looks

    def _find_tables(self) -> Tables:
        """Find the tables of the model. Raises JobError where it cannot have any."""
        layers, training = remote_layers(self.model), self._training
        try:
            tables = Tables(layers, together=self._together())
        except ModelError as error:
            raise JobError(f"the model of job {self._name}: {error}") from error
        if tables.specs and getattr(training.optimizer, "gradient_accumulation_steps", None):
            raise JobError(
                f"the model of job {self._name} has tables, and batches of one contribution have different rows: "
                "expected larger batches instead of gradient_accumulation_steps"
            )
        return tables

    def keys(self, batch: Any) -> Mapping[str, Keys]:
        """Return the keys of rows that a batch needs, by table."""
        found: LookedUp = _bare(batch)
        return found.keys

    def _as_the_user_knows_them(self) -> tuple[Any, ...]:
        """List the trained variables: Keras' own of a Keras model, which have a path; then rows of tables."""
        known = self.model.trainable_variables if isinstance(self.model, keras.Layer) else ()
        by_value = {id(variable.value): variable for variable in known}
        trained = self._variables.variables[: self._variables.trainable]
        return (*(by_value.get(id(variable), variable) for variable in trained), *self._tables.scratch)

    def memory(self) -> list[np.ndarray]:
        """Values of the variables that do not travel (counters, states of random generators and RNNs), in order."""
        return [variable.numpy() for variable in self._variables.local]

    def remember(self, values: list[np.ndarray]) -> None:
        """Set them, as `memory` gave them: so one trainer can stand in for several workers in turn."""
        for variable, value in zip(self._variables.local, values, strict=True):
            variable.assign(value)

    def goes_on(self) -> None:
        """Warn of what is lost where a worker's new process goes on in the middle of its data."""
        warn_of_lost(self.model, (keras.Variable, tf.Variable))

    @property
    def traces(self) -> int:
        """How often the step was traced so far."""
        return sum(traces.count for traces in self._traces)

    def attach(self, plan: Plan, dtypes: tuple[str, ...] = ("float32",)) -> None:
        """Lay the step out for `plan`, whose variables must be this trainer's.

        `dtypes`: those in which weights will come. Others are taken, too, but
        cost the first step that brings them a new graph.
        """
        if plan.variables != self._variables.specs:
            raise ValueError("the plan is for other variables than this trainer's `specs`")
        self._plan, self._dtypes = plan, dtypes
        training = self._training
        trained = self._variables.variables[: self._variables.trainable]
        sizes = [shard.elements for shard in plan.shards]
        self._traces = []

        def trace(body: Body) -> Traces:
            self._traces.append(Traces(body, sizes, eager=training.eager, jit=training.jit))
            return self._traces[-1]

        objective = training.objective((*trained, *self._tables.scratch))
        if self.tables:
            self._finder = self._tables.finder(objective)
            objective = self._tables.over_rows(objective)
        self._step = FlatStep(
            *(plan, self._variables, objective, self._process, trace),
            every=self._process.every,
        )

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, batch) over `epochs` epochs of this worker's part of the data, from number `skip` on.

        Under gradient accumulation a batch here is a `Group` of the data's.

        What a batch's step draws (dropout, augmentation in layers) is a function of `seed`, `worker_index` and the
        batch's number, so that it draws the same wherever the worker went on. The
        step is warmed up on the first batch before that is handed out: a slow
        first step would be a very stale one.
        """
        if self._step is None:
            raise RuntimeError("attach(plan) comes before batches()")
        self._own_randomness(worker_index, seed)
        if worker_count > 1:
            compiled = self._training.compiled
            loss = getattr(self.model, "loss", None) if compiled else keras_loss(self.job)
            warn_of_reduction(loss, self.model if compiled else None)
        with blame(f"dataset() of job {self._name}"):
            dataset = self.job.dataset(worker_index, worker_count, seed)

        def learn(ended: int, batches: int) -> None:
            self._learn(epochs, ended, batches)

        learn(1, known_length(dataset))
        every = self._process.every
        numbered = grouped_batches(dataset, epochs, skip, every, self._begin_epoch, learn)
        drawing = ((number, self._drawn(batch, seed, worker_index, number)) for number, batch in numbered)
        return self._prepared(drawing, self._step)

    @property
    def work(self) -> WorkUnits | None:
        """The job's data as work units; None where each worker has data of its own. Raises JobError."""
        found = declared_work(self.job)
        if found is not None and self._process.every > 1:
            raise JobError(
                f"job {self._name} accumulates gradients over {self._process.every} batches and declares work units, "
                "of which each batch counts by itself: expected larger batches instead"
            )
        return found

    def unit_batches(self, worker_index: int, seed: int) -> Callable[[Unit], Iterator[Any]]:
        """From a work unit to its batches, in a job with `work`.

        What a step draws is a function of `seed`, the unit and the batch's place in it, whichever worker it is.
        The step is warmed up as by `batches`, on the first batch of the first unit.
        """
        work = self.work
        if self._step is None or work is None:
            raise RuntimeError("unit_batches() is for a trainer that is attached, of a job with `work`")
        self._own_randomness(worker_index, seed)
        first = next(unit_batches(self.job, work.of(0, 0, seed)), None)
        if first is not None:
            self._warm_up(self._step, self._looked_up(first))

        def opened(unit: Unit) -> Iterator[Any]:
            for part, batch in enumerate(unit_batches(self.job, unit)):
                yield self._drawn(batch, seed, unit.epoch, unit.number, part)

        return opened

    def _drawn(self, batch: Any, *of: int) -> Any:
        """Return the batch, with its ids, and with what its step draws where the model draws anything."""
        batch = self._looked_up(batch)
        return Drawing(batch, of) if self._variables.seeds else batch

    def _looked_up(self, batch: Any) -> Any:
        """Return the batch itself, or of a model with tables the promise of a `LookedUp`."""
        if self._finder is None or self._ahead is None:
            return batch
        with blame(f"a training step of job {self._name}"):
            try:
                return self._ahead.submit(self._finder(batch))
            except ModelError as error:
                raise JobError(f"the model of job {self._name}: {error}") from error

    def _own_randomness(self, worker_index: int, seed: int) -> None:
        own = np.random.SeedSequence([seed, worker_index]).generate_state(2)
        keras.utils.set_random_seed(int(own[0]))
        for number, variable in enumerate(self._variables.seeds):
            variable.assign(np.array([own[1], number], dtype=variable.dtype.as_numpy_dtype))

    def _learn(self, epochs: int, ended: int, batches: int) -> None:
        """Note how many batches the `ended` epochs had."""
        if batches:
            self.total_batches = epochs * batches // ended // self._process.every

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _prepared(self, batches: Iterator[tuple[int, Any]], step: FlatStep) -> Iterator[tuple[int, Any]]:
        first = next(batches, None)
        if first is None:
            return
        self._warm_up(step, first[1])
        yield first
        yield from batches

    def _warm_up(self, step: FlatStep, batch: Any) -> None:
        with blame(f"a training step of job {self._name}"):
            step.prepare(_bare(batch), self._dtypes)
        warn_of_sources((graph for traces in self._traces for graph in traces.graphs), self._variables)

    def step(self, flats: list[Flat], batch: Any) -> StepResult:
        """One batch on the weights `flats` (one payload per shard): see `FlatStep`."""
        return self._compute(flats, batch, None)

    def step_rows(self, flats: list[Flat], batch: Any, rows: Mapping[str, Floats]) -> StepResult:
        """Compute `step` of a model with tables; `rows`: by table, in the order of ``keys(batch)``."""
        return self._compute(flats, batch, rows)

    def _compute(self, flats: list[Flat], batch: Any, rows: Mapping[str, Floats] | None) -> StepResult:
        if self._step is None:
            raise RuntimeError("attach(plan) comes before step()")
        if isinstance(batch, Drawing):
            drawn = np.random.SeedSequence(batch.of).generate_state(len(self._variables.seeds))
            for own, variable in zip(drawn, self._variables.seeds, strict=True):
                variable.assign(np.array([own, 0], dtype=variable.dtype.as_numpy_dtype))
        found = _bare(batch)
        with blame(f"a training step of job {self._name}"):
            return self._step(flats, found if rows is None else replace(found, rows=rows))

    def evaluate(self, flats: list[Flat]) -> dict[str, float]:
        """Return the job's metrics of the model with the weights `flats`; {} when the job measures nothing."""
        if self._plan is None:
            raise RuntimeError("attach(plan) comes before evaluate()")
        before = self.memory()
        self._variables.assign(self._plan.gather(flats))
        # As an exported model begins, which has none of it.
        self.remember(self._fresh)
        try:
            with blame(f"evaluate() of job {self._name}"):
                return evaluate(self.job, self.model)
        finally:
            self.remember(before)

    def evaluate_rows(self, flats: list[Flat], read: ReadRows) -> dict[str, float]:
        """Compute `evaluate` of a model with tables, whose rows `read` returns by sorted unique keys."""
        for layer in remote_layers(self.model):
            layer.remote.reader = by_keys(read)
        return self.evaluate(flats)

    def measures(self) -> list[str] | None:
        """Return the names of what `evaluate` measures, looked up on one batch; None where only the job's own method
        knows."""
        with blame(f"evaluate() of job {self._name}"):
            return measured_names(self.job, self.model)

    def save_model(
        self,
        weights: Mapping[str, np.ndarray],
        path: Path,
        optimizer: OptimizerState | None = None,
        tables: WholeTables = NO_TABLES,
    ) -> str:
        """Write the model with these weights, by variable, and rows, by table: see `psworker.tensorflow.export`."""
        return save_model(self.job, self.model, self._variables, weights, path, optimizer, tables)
