"""`JobTrainer`: a job's model, data and loss, in the form that the worker's loop needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec
from pswire.model.tables import Floats, Keys, TableSpec
from pswire.model.variables import WholeTables
from pswire.transport.wire import wire_named
from psworker.backends import DeviceError, ModelError, StepResult
from psworker.backends.keras.function import function_of
from psworker.backends.keras.reductions import warn_of_reduction
from psworker.backends.keras.step import (
    CompiledStep,
    Computation,
    TableComputation,
    backend,
    own_train_step,
    replaced,
    samples_of,
    unwrapped,
)
from psworker.backends.keras.variables import KerasModel, draw, read, set_seed, undone
from psworker.backends.lookups import LookedUp, by_keys, remote_of, tables_of
from psworker.job import Job
from psworker.job.errors import JobError, blame
from psworker.job.job import OptimizerState
from psworker.keras.jobs.batches import (
    BatchGroup,
    built,
    declared_work,
    grouped_batches,
    known_length,
    unit_batches,
)
from psworker.keras.jobs.compiling import by_user, compiled
from psworker.keras.jobs.evaluation import evaluate, measured_names
from psworker.keras.jobs.export import NO_TABLES, save_model
from psworker.keras.jobs.initial import load
from psworker.keras.jobs.processing import Processing
from psworker.keras.translate import worker_clips
from psworker.local import ReadRows
from psworker.work import Unit, WorkUnits

log = logging.getLogger("ps-worker")


@dataclass(frozen=True)
class Drawing:
    """A batch for a model that draws random numbers; `of`: the numbers that decide which."""

    batch: Any
    of: tuple[int, ...]


def _bare(batch: Any) -> Any:
    found = batch.batch if isinstance(batch, Drawing) else batch
    return found.result() if isinstance(found, Future) else found


def set_up(device: str, *, deterministic: bool) -> str:
    """Choose the device of this process, before Keras' backend computes: "auto", "cpu" or "gpu:N"; return its name.

    Raises DeviceError for one that is not there, and for a backend that cannot train.
    """
    try:
        found = backend()
    except ModelError as error:
        raise DeviceError(str(error)) from error
    return found.set_up(device, deterministic=deterministic)


class JobTrainer:
    """Made, then asked for `specs`, then attached to a plan, then `batches` and `step` in turn.

    `seed` decides the initial values, the same in every worker. `device` is
    "auto", "cpu" or "gpu:N". `deterministic` makes results independent of the
    number of cores and of the run, as far as Keras' backend can. Raises DeviceError, and JobError wherever the user's
    code raises or returns something that cannot be trained.
    """

    #: Weights may come in the wire dtype; payloads go in the dtype in which the weights came.
    narrow = True

    def __init__(self, job: Job, *, device: str = "auto", seed: int = 0, deterministic: bool = False) -> None:
        #: The device on which it computes, and below the framework.
        self.device = set_up(device, deterministic=deterministic)
        self._backend = backend()
        self.backend = self._backend.framework.name
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
            # What is trained is the model itself, but under a loss of the job's own.
            self._trained, self.optimizer = compiled(job, self.model)
            self._variables = KerasModel(self._backend.collect(self.model), self._backend.framework)
            #: The sparse tables that the model's layers look up.
            self.tables: Sequence[TableSpec] = tables_of(self._trained._flatten_layers())
        #: Batches of one contribution.
        self.every = int(unwrapped(self._trained.optimizer).gradient_accumulation_steps or 1)
        self._check_tables()
        self._fresh = self.memory()
        # Finds keys of a batch while the one before computes.
        self._ahead = ThreadPoolExecutor(1, "ids-ahead") if self.tables else None
        self._process = Processing(job, self.optimizer)
        self._compute: Computation | None = None
        # The dtypes of weights for which the step is compiled.
        self._prepared: set[tuple[Any, ...]] = set()
        self._plan: Plan | None = None
        self._dtypes: tuple[str, ...] = ("float32",)

    def _check_tables(self) -> None:
        refused = self._backend.refuse(self._trained)
        if refused is not None:
            raise JobError(f"the model of job {self._name}: {refused}")
        if self.tables and self.every > 1:
            raise JobError(
                f"the model of job {self._name} has tables, and batches of one contribution have different rows: "
                "expected larger batches instead of gradient_accumulation_steps"
            )

    @property
    def specs(self) -> list[tuple[VariableSpec, np.ndarray]]:
        """Every travelling variable with its present value (float32, of its shape)."""
        return list(zip(self._variables.specs, self._variables.values(), strict=True))

    def begin_with(self, path: Path) -> None:
        """Load the values in this file, before `specs` are asked for: see `initial.load`."""
        load(path, self._variables)

    @property
    def function(self) -> str:
        """A digest of what the model computes."""
        return function_of(self.model, self.job.loss)

    def clip_beside(self, optimizer: Mapping[str, object]) -> None:
        """Clip gradients only if servers with this [optimizer] do not. Before the first batch."""
        self._process.clips = worker_clips(self.optimizer, optimizer)

    @property
    def trained(self) -> list[tuple[Any, str]]:
        """The trained variables, each with the name by which the servers know it."""
        found = self._variables.found
        pairs = zip(found.variables, found.specs, strict=True)
        return [(variable, spec.name) for variable, spec in pairs][: found.trainable]

    def keys(self, batch: Any) -> Mapping[str, Keys]:
        """Return the keys of rows that a batch needs, by table."""
        found: LookedUp = _bare(batch)
        return found.keys

    def memory(self) -> list[np.ndarray]:
        """Values of the variables that do not travel (counters, states of random generators and RNNs), in order."""
        return [np.array(read(variable)) for variable in self._variables.found.local]

    def remember(self, values: list[np.ndarray]) -> None:
        """Set them, as `memory` gave them: so one trainer can stand in for several workers in turn."""
        for variable, value in zip(self._variables.found.local, values, strict=True):
            variable.assign(value)

    def attach(self, plan: Plan, dtypes: tuple[str, ...] = ("float32",)) -> None:
        """Lay the step out for `plan`, whose variables must be this trainer's.

        `dtypes`: those in which weights will come. Others are taken, too, but
        cost the first step that brings them a new graph.
        """
        if plan.variables != self._variables.specs:
            raise ValueError("the plan is for other variables than this trainer's `specs`")
        self._plan, self._dtypes = plan, dtypes
        self._prepared.clear()
        rows_apart = own_train_step(self.model) if isinstance(self.model, keras.Model) else False
        step = CompiledStep(
            *(self._trained, self._variables.found, plan, None, self.every),
            process=self._process,
            norm=True,
            around=self._without_metrics,
            apart=self._process.apart or rows_apart,
        )
        with blame(f"the model of job {self._name}"):
            self._compute = self._backend.computation(step)

    @contextmanager
    def _without_metrics(self) -> Iterator[None]:
        """Nobody reads what the metrics of a batch are; a `train_step` of the user's may."""
        model, own = self._trained, dict[str, Any]()
        if not own_train_step(model) and type(model).compute_metrics is keras.Model.compute_metrics:
            own["compute_metrics"] = lambda *_, **__: {}
        with replaced(model, **own):
            yield

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, batch) over `epochs` epochs of this worker's part of the data, from number `skip` on.

        Under gradient accumulation a batch here is a `BatchGroup` of the data's.

        What a batch's step draws (dropout, augmentation in layers) is a function of `seed`, `worker_index` and the
        batch's number, so that it draws the same wherever the worker went on. The
        step is warmed up on the first batch before that is handed out: a slow
        first step would be a very stale one.
        """
        self._attached()
        self._own_randomness(worker_index, seed)
        if worker_count > 1:
            warn_of_reduction(self._trained.loss, self.model if by_user(self.model) else None)
        with blame(f"dataset() of job {self._name}"):
            dataset = self.job.dataset(worker_index, worker_count, seed)

        def learn(ended: int, batches: int) -> None:
            self._learn(epochs, ended, batches)

        learn(1, known_length(dataset))
        numbered = grouped_batches(dataset, epochs, skip, self.every, self._begin_epoch, learn)
        drawing = ((number, self._drawn(batch, seed, worker_index, number)) for number, batch in numbered)
        return self._warmed(drawing)

    @property
    def work(self) -> WorkUnits | None:
        """The job's data as work units; None where each worker has data of its own. Raises JobError."""
        found = declared_work(self.job)
        if found is not None and self.every > 1:
            raise JobError(
                f"job {self._name} accumulates gradients over {self.every} batches and declares work units, "
                "of which each batch counts by itself: expected larger batches instead"
            )
        return found

    def unit_batches(self, worker_index: int, seed: int) -> Callable[[Unit], Iterator[Any]]:
        """From a work unit to its batches, in a job with `work`.

        What a step draws is a function of `seed`, the unit and the batch's place in it, whichever worker it is.
        The step is warmed up as by `batches`, on the first batch of the first unit.
        """
        self._attached()
        work = self.work
        if work is None:
            raise RuntimeError("unit_batches() is for a trainer of a job with `work`")
        self._own_randomness(worker_index, seed)
        first = next(unit_batches(self.job, work.of(0, 0, seed)), None)
        if first is not None:
            self._warm_up(self._looked_up(first))

        def opened(unit: Unit) -> Iterator[Any]:
            for part, batch in enumerate(unit_batches(self.job, unit)):
                yield self._drawn(batch, seed, unit.epoch, unit.number, part)

        return opened

    def _drawn(self, batch: Any, *of: int) -> Any:
        """Return the batch, with its ids, and with what its step draws where the model draws anything."""
        batch = self._looked_up(batch)
        return Drawing(batch, of) if self._variables.found.seeds else batch

    def _looked_up(self, batch: Any) -> Any:
        """Return the batch itself, or of a model with tables the promise of a `LookedUp`."""
        if self._ahead is None:
            return batch
        with self._blaming():
            return self._ahead.submit(cast(TableComputation, self._attached()).find(batch))

    def _own_randomness(self, worker_index: int, seed: int) -> None:
        own = np.random.SeedSequence([seed, worker_index]).generate_state(2)
        keras.utils.set_random_seed(int(own[0]))
        for number, variable in enumerate(self._variables.found.seeds):
            set_seed(variable, int(own[1]), number)

    def _learn(self, epochs: int, ended: int, batches: int) -> None:
        """Note how many batches the `ended` epochs had."""
        if batches:
            self.total_batches = epochs * batches // ended // self.every

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _warmed(self, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        for number, (at, batch) in enumerate(batches):
            if not number:
                self._warm_up(batch)
            yield at, batch

    def _warm_up(self, batch: Any) -> None:
        """Take a step at weights of each dtype, and undo it: compiling makes the first one slow."""
        plan, found = self._plan, self._variables.found
        assert plan is not None
        with self._blaming(), undone([*found.variables, *found.local, self._trained.optimizer._iterations]):
            flats = plan.scatter(self._variables.values())
            for dtype in self._dtypes:
                narrow = wire_named(dtype).array_dtype
                self._contribute([flat.astype(narrow, copy=False) for flat in flats], _bare(batch))

    def step(self, flats: list[NDArray[Any]], batch: Any) -> StepResult:
        """One batch on the weights `flats`, one payload per shard of the plan (float32, float16 or bfloat16)."""
        return self._step(flats, batch, None)

    def step_rows(self, flats: list[NDArray[Any]], batch: Any, rows: Mapping[str, Floats]) -> StepResult:
        """Compute `step` of a model with tables; `rows`: by table, in the order of ``keys(batch)``."""
        return self._step(flats, batch, rows)

    def _step(self, flats: list[NDArray[Any]], batch: Any, rows: Mapping[str, Floats] | None) -> StepResult:
        if isinstance(batch, Drawing):
            draw(self._variables.found.seeds, batch.of)
        found = _bare(batch)
        with self._blaming():
            return self._contribute(flats, found if rows is None else replace(found, rows=rows))

    def _contribute(self, flats: list[NDArray[Any]], batch: Any) -> StepResult:
        """Put weights into the model, and compute a batch or a `BatchGroup` at them."""
        compute = self._attached()
        batches = batch.batches if isinstance(batch, BatchGroup) else (batch,)
        *before, last = map(self._tensors, batches)
        compute.put(flats)
        dtypes = tuple(flat.dtype for flat in flats)
        if dtypes not in self._prepared:
            compute.prepare(last, differ=True)
            self._prepared.add(dtypes)
        for each in before:
            compute.add(each)
        return compute.finish(last, sum(map(samples_of, batches)))

    def _tensors(self, batch: Any) -> Any:
        tensor = self._backend.framework.tensor
        if isinstance(batch, LookedUp):
            return replace(batch, batch=keras.tree.map_structure(tensor, batch.batch))
        return keras.tree.map_structure(tensor, batch)

    def _attached(self) -> Computation:
        if self._compute is None:
            raise RuntimeError("attach(plan) comes before batches() and step()")
        return self._compute

    def _blaming(self) -> AbstractContextManager[None]:
        return blame(f"a training step of job {self._name}")

    def evaluate(self, flats: list[NDArray[Any]]) -> dict[str, float]:
        """Return the job's metrics of the model with the weights `flats`; {} when the job measures nothing."""
        if self._plan is None:
            raise RuntimeError("attach(plan) comes before evaluate()")
        before = self.memory()
        self._variables.put(self._plan.gather(flats))
        # As an exported model begins, which has none of it.
        self.remember(self._fresh)
        try:
            with blame(f"evaluate() of job {self._name}"):
                return evaluate(self.job, self.model)
        finally:
            self.remember(before)

    def evaluate_rows(self, flats: list[NDArray[Any]], read: ReadRows) -> dict[str, float]:
        """Compute `evaluate` of a model with tables, whose rows `read` returns by sorted unique keys."""
        for layer in self._trained._flatten_layers():
            if (remote := remote_of(layer)) is not None:
                remote.reader = by_keys(read)
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
        """Write the model with these weights, by variable, and rows, by table: see `psworker.keras.jobs.export`."""
        return save_model(
            self.job, self.model, self._variables, self.optimizer, weights, path, optimizer, tables
        )
