"""`distribute`: a compiled model whose `fit` trains on parameter servers.

Keras' `fit` runs as ever; what one batch does is replaced. The weights that
Keras sees after a batch are those of the version that the servers granted for
the next one, so callbacks, validation and metrics meet what plain `fit` would
show them. The ticket for the next batch is held between batches, epochs and,
if the job stays open, between two `fit`s.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from pswire.addresses import Address
from pswire.logs.events import event
from psworker.connecting import connect
from psworker.engine import Grant
from psworker.errors import PayloadRefused, SessionError, Voided
from psworker.keras.callbacks import guarded
from psworker.keras.dealt import DealtData
from psworker.keras.epochs import EpochMetrics
from psworker.keras.errors import FitError
from psworker.keras.gradients import BatchResult, GradientStep
from psworker.keras.servers import EmbeddedServer, Place, find_servers
from psworker.keras.translate import translate, unwrapped
from psworker.local import NONFINITE_LIMIT
from psworker.loop import Diverged
from psworker.session import Session
from psworker.tensorflow.device import require_tensorflow_backend
from psworker.tensorflow.variables import ModelVariables, collect

log = logging.getLogger("ps-worker")


def distribute(
    model: Any,
    hosts: str | Sequence[Address] | None = None,
    *,
    policy: str = "sync",
    seed: int = 0,
    out: str | Path | None = None,
    name: str | None = None,
    task_index: int | None = None,
    wire_dtype: str | None = None,
    transport: str | None = None,
    server_timeout: float = 60.0,
    stay: bool | None = None,
    sharding: str = "none",
) -> Distributed:
    """From now on `model.fit` trains on parameter servers; call it after `model.compile`.

    `hosts` ("host:port,...", in task order) are running servers, whose job
    this worker joins; else those of PS_HOSTS or TF_CONFIG. Where nothing says
    where servers are, one is started on loopback, for this process alone, at
    the first batch: with `policy`, `seed` and, if `out` is given, a run folder
    there. `name`, `task_index`, `wire_dtype` ("float32" by default), `transport`
    ("auto") and `server_timeout` are those of `psworker.connect`; a run that
    started this process may have said the defaults (PS_TASK_INDEX,
    PS_WIRE_DTYPE, PS_TRANSPORT).

    `stay`: the job stays open after `fit`, for another one; `close` ends it.
    The default for a server of one's own. On a cluster the end of `fit` is by
    default the end of this worker's part: it waits for the others, and the
    model then has the job's last version.

    `sharding="units"`: every worker gives `fit` the same whole data, arrays or a PyDataset, and the coordinator deals
    it: each batch counts once per epoch over all workers, also when workers join, leave, die and differ in speed.
    "none": each worker trains on what its script gives it. A server of one's own has nobody to share with.

    Raises TranslationError for an optimizer that servers do not have,
    FitError for a model that is not compiled, AddressError and ValueError for
    addresses that make no sense.
    """
    require_tensorflow_backend()
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise FitError(
            "distribute() takes a compiled Keras model: call model.compile(optimizer=..., loss=...) before"
        )
    if sharding not in ("none", "units"):
        raise ValueError(f'sharding: expected "none" or "units", got {sharding!r}')
    place = find_servers(hosts, os.environ)
    if sharding == "units" and place is not None and stay:
        raise ValueError('sharding="units" is for one fit per job: expected stay=False')
    before = _DISTRIBUTED.get(model)
    if before is not None:
        before.close()
    own = (
        None
        if place is not None
        else functools.partial(EmbeddedServer, policy=policy, seed=seed, out=_path(out))
    )
    wire_dtype = wire_dtype or (place.wire_dtype if place is not None else "") or "float32"
    transport = transport or (place.transport if place is not None else "") or "auto"
    join = functools.partial(
        connect,
        name=name,
        task_index=task_index if place is None or task_index is not None else place.task_index,
        wire_dtype=wire_dtype,
        server_timeout=server_timeout,
        transport=transport,
    )
    made = Distributed(model, place, own, join, wire_dtype, place is None if stay is None else stay)
    made.deals = sharding == "units" and place is not None
    _DISTRIBUTED[model] = made
    return made


_DISTRIBUTED: weakref.WeakKeyDictionary[Any, Distributed] = weakref.WeakKeyDictionary()


def _path(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)


class Distributed:
    """A model's side of the job. `close` it, or use `with`; the end of the process does so, too.

    Not thread-safe, as `fit` is not.
    """

    def __init__(
        self,
        model: Any,
        place: Place | None,
        start: Callable[[Mapping[str, Any]], EmbeddedServer] | None,
        join: Callable[..., Session],
        wire_dtype: str,
        stay: bool,
    ) -> None:
        self.model = model
        self._place, self._start, self._join = place, start, join
        self._wire_dtype, self._stay = wire_dtype, stay
        self._optimizer = model.optimizer
        # Refused now, not after minutes of preparing data.
        self.optimizer = translate(model.optimizer, _named(model) if model.built else ())
        # The one that the servers have, or will have with the next contribution; None where a schedule gives it.
        self._rate = _set_rate(model.optimizer)
        self._server: EmbeddedServer | None = None
        self._session: Session | None = None
        self._variables: ModelVariables | None = None
        self._step: GradientStep | None = None
        self._grant: Grant | None = None
        # The payloads that the model's weights were made from.
        self._weights: list[Any] = []
        self._began_with = 0.0
        self._epoch = 0
        self._staleness = (0, 0)
        self._check_weights = self._finished = False
        self._batch = self._bad = 0
        self._metrics = EpochMetrics(model)
        # The data of `fit` is dealt by the coordinator; that of the present fit.
        self.deals = False
        self._dealt: DealtData | None = None
        # Keras is told to stop only because the next part is one of another epoch.
        self._pausing = False
        self._first = True
        self._fates: dict[str, int] = {}
        self._plain = {"fit": model.fit, "make_train_function": model.make_train_function}
        model.fit = self._fit
        model.make_train_function = self._make_train_function
        model.train_function = None
        atexit.register(self._at_exit)

    # For the caller

    @property
    def session(self) -> Session:
        """The session with the servers; joins the job if that has not been done, with the weights of this moment."""
        self._open()
        assert self._session is not None
        return self._session

    @property
    def version(self) -> int:
        """The version of the weights in the model; 0 before the first batch."""
        return self._grant.version if self._grant is not None else 0

    @property
    def fates(self) -> dict[str, int]:
        """How many of this worker's contributions were applied and dropped, as far as it is known."""
        self._count_fates()
        return dict(self._fates)

    def close(self) -> None:
        """End this worker's part of the job; a server of one's own ends with it. The model keeps its weights.

        `model.fit` is Keras' own again. Safe to call twice.
        """
        atexit.unregister(self._at_exit)
        for name in self._plain:
            self.model.__dict__.pop(name, None)
        self.model.train_function = None
        self._plain = {}
        session, self._session = self._session, None
        if session is not None:
            try:
                if session.stop is None:
                    session.done()
            finally:
                self._grant = None
                session.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _at_exit(self) -> None:
        """A process that an exception ends is not done with its data: it leaves, and nobody waits for it."""
        error = getattr(sys, "last_value", None)
        if error is not None and self._session is not None:
            self._leave(f"{type(error).__name__} in the script")
        self.close()

    def _leave(self, reason: str) -> None:
        session, self._session, self._grant = self._session, None, None
        if session is not None:
            session.close(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # In the place of Keras' own

    def _fit(self, *args: Any, **keywords: Any) -> Any:
        bound = inspect.signature(self._plain["fit"]).bind(*args, **keywords)
        if self.deals and self._session is None and not self._finished:
            self._dealt = DealtData(bound.arguments)
            if self.model.optimizer.gradient_accumulation_steps:
                raise FitError(
                    'sharding="units" with gradient_accumulation_steps: expected larger batches instead'
                )
        given = bound.arguments.get("callbacks")
        mine = _Hooks(self)
        if isinstance(given, keras.callbacks.CallbackList):
            mine.set_model(self.model)
            given.callbacks[:] = [mine, *(guarded(each, self._is_first) for each in given.callbacks)]
        else:
            several = list(given) if isinstance(given, list | tuple) else [given] if given is not None else []
            bound.arguments["callbacks"] = [mine, *(guarded(each, self._is_first) for each in several)]
        self.model.evaluate = self._evaluate
        try:
            return self._plain["fit"](*bound.args, **bound.kwargs)
        except BaseException as error:
            if self._place is not None:
                # Others must not wait for a contribution that will not come.
                self._leave(f"{type(error).__name__} in fit")
            raise
        finally:
            self.model.__dict__.pop("evaluate", None)

    def _evaluate(self, *args: Any, **keywords: Any) -> Any:
        """Keras' own; the validation of an epoch happens in worker 0, for all: its weights are one version."""
        if keywords.get("_use_cached_eval_dataset"):
            self._metrics.remember()
            if not self._is_first():
                return {}
        return type(self.model).evaluate(self.model, *args, **keywords)

    def _is_first(self) -> bool:
        """This is worker 0, which acts for all where once is enough."""
        if self._session is not None:
            return self._session.worker_index == 0
        if self._place is None or self._finished:
            return self._first
        return (
            self.session.worker_index == 0 if self._place.task_index is None else self._place.task_index == 0
        )

    def _make_train_function(self, force: bool = False) -> Any:
        self.model.train_function = self._train
        return self._train

    def _train(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """What Keras calls for every `steps_per_execution` batches. Raises StopIteration when there is no batch."""
        if self._dealt is not None:
            return self._train_dealt(self._dealt)
        logs: Mapping[str, Any] | None = None
        for _ in range(self.model.steps_per_execution):
            try:
                data = next(iterator)
            except StopIteration:
                break
            logs = self._train_batch(data)
            if self.model.stop_training:
                break
        if logs is None:
            raise StopIteration
        return logs

    def _train_dealt(self, dealt: DealtData) -> Mapping[str, Any]:
        """The batches of the parts that came with the grants, until one is of another epoch than Keras is in."""
        if self._step is None:
            self._prepare(dealt.first)
        if self._grant is None and self.session.stop is None:
            self._next()
        logs: Mapping[str, Any] = self.model.get_metrics_result()
        for _ in range(self.model.steps_per_execution):
            grant = self._grant
            if grant is None or self.model.stop_training:
                break
            assert grant.part is not None
            if grant.part.epoch <= dealt.epoch:
                logs = self._train_batch(dealt.batch(self.session.unit(grant)))
        grant = self._grant
        if grant is not None and grant.part is not None and grant.part.epoch > dealt.epoch:
            self._pausing = not self.model.stop_training
            self.model.stop_training = True
        return logs

    # One batch

    def _prepare(self, data: Any) -> None:
        if not self.model.built:
            self.model._symbolic_build(data_batch=data)
        self._open()
        assert self._step is not None
        self._step.prepare(data)

    def _train_batch(self, data: Any) -> Mapping[str, Any]:
        if self._step is None:
            self._prepare(data)
        assert self._step is not None
        if self._grant is None:
            self._next()
        self._check()
        result = self._step(data)
        if result.payloads is not None and self._grant is not None:
            self._contribute(self._grant, result)
            self._next()
        return result.logs

    def _contribute(self, grant: Grant, result: BatchResult) -> None:
        """Push and commit under `grant`, which is over afterwards."""
        session = self.session
        assert result.payloads is not None
        finite = self._finite(result)
        rate = self._changed_rate()
        try:
            if not finite:
                raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
            session.contribute(
                grant,
                result.payloads,
                samples=result.samples,
                loss=result.loss,
                norm=result.norm,
                batch=self._batch,
                ready=True,
                learning_rate=rate,
            )
        except Voided as reason:
            log.info("%s", reason, extra=event("contribution_void"))
            session.abandon(grant, "cancelled")
        except PayloadRefused as refusal:
            told = event("batch_skipped")
            log.warning("batch %d is skipped: %s", self._batch, refusal, extra=told)
            session.abandon(grant, "nonfinite")
            self._bad += 1
            if self._bad >= NONFINITE_LIMIT:
                raise Diverged(
                    f"{self._bad} batches in a row gave no finite gradient: lower the learning rate, or look for a "
                    "division by zero or log(0) in the loss"
                ) from refusal
        else:
            self._bad = 0
            self._rate = self._rate if rate is None else rate
        self._batch += 1

    def _finite(self, result: BatchResult) -> bool:
        """Is the gradient finite? A dynamic loss scale follows from the answer, as in Keras."""
        finite = math.isfinite(result.norm)
        optimizer = self._optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            if not finite:
                optimizer.step_counter.assign(0)
                optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 0.5)
                self._bad = min(self._bad, NONFINITE_LIMIT - 2)  # halving is meant to take several batches
            elif int(optimizer.step_counter) == optimizer.dynamic_growth_steps - 1:
                optimizer.step_counter.assign(0)
                optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)
            else:
                optimizer.step_counter.assign_add(1)
        return finite

    def _next(self) -> None:
        """The next ticket, and its version into the model. At the end of the job Keras is told to stop."""
        session = self.session
        assert self._step is not None
        self._grant = None
        while (grant := session.ready()) is not None:
            try:
                with session.view_flat(grant, narrow=True) as flats:
                    self._weights = self._step.assign(flats, grant.version)
            except Voided as reason:
                log.info("%s", reason, extra=event("contribution_void"))
                session.abandon(grant, "cancelled")
                continue
            self._grant = grant
            return
        self.model.stop_training = True
        self._finish(session)

    # Beginning and end

    def _open(self) -> None:
        """Start a server if need be, join the job with the model's weights, lay the step out."""
        if self._session is not None:
            return
        model = self.model
        if self._finished:
            raise FitError(
                "this worker's part of the job ended with the first fit: for several fits in one job call "
                "distribute(model, stay=True), for a new job call distribute(model) again"
            )
        if not model.built:
            raise FitError(
                "the model has no variables yet: build it, or let fit see its first batch before joining"
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self.optimizer = translate(model.optimizer, _named(model))
        # A rate that was set before the job begins is the one that it begins with.
        self._rate = _set_rate(model.optimizer)
        self._began_with = self._rate or 0.0
        if int(unwrapped(model.optimizer)._iterations) and self._server is None:
            log.warning(
                "the optimizer has taken %d steps before; on the servers it begins anew, at version 0 and with nothing "
                "remembered",
                int(unwrapped(model.optimizer)._iterations),
                extra=event("optimizer_anew"),
            )
        self._variables = variables = collect(model)
        if self._start is not None and self._server is None:
            self._server = self._start(self.optimizer)
        hosts = (self._server.address,) if self._server is not None else self._place.hosts  # type: ignore[union-attr]
        specs = list(zip(variables.specs, variables.values(), strict=True))
        if self.deals and self._dealt is None:
            raise FitError(
                'sharding="units" joins the job with the data of fit: expected fit before .session'
            )
        dealt = {} if self._dealt is None else {"work": self._dealt.work, "epochs": self._dealt.epochs}
        self._session = session = self._join(hosts, specs, optimizer=self.optimizer, **dealt)
        self._step = GradientStep(model, variables, session.plan, self._wire_dtype)
        self._batch = session.next_batch
        self._first = session.worker_index == 0
        if session.worker_index:
            _own_randomness(variables, session.worker_index)

    def _begin_fit(self) -> None:
        if self.model.optimizer is not self._optimizer:
            raise FitError(
                "the model was compiled again after distribute(): call psworker.keras.distribute(model) again, which "
                "starts a new job with the new optimizer"
            )
        if self._session is not None and self._variables is not None:
            if collect(self.model).specs != self._variables.specs:
                raise FitError(
                    "variables were frozen or thawed, or the model was changed, in the middle of a job: compile "
                    "the model and call psworker.keras.distribute(model) again, as Keras wants it compiled again, too"
                )
        self._check_weights = True

    def _check(self) -> None:
        """What changed behind our back is refused; nothing is ignored."""
        if self._check_weights and self._weights and self._step is not None:
            self._check_weights = False
            changed = self._step.differing(self._weights)
            if changed is not None:
                raise FitError(
                    f"the weights of {changed!r} were changed by something else than training (set_weights, "
                    "load_weights, restore_best_weights, use_ema at the end of fit) in the middle of a job, and "
                    "servers take weights at its beginning only: call psworker.keras.distribute(model) again, which "
                    "starts a new job from these weights"
                )

    def _changed_rate(self) -> float | None:
        """The learning rate that a callback or the script has set since the last contribution, for the servers.

        One worker sets it for all, so that those who are behind do not set back what others have moved.
        """
        rate = _set_rate(self._optimizer)
        if rate is None or rate == self._rate or self.session.worker_index:
            return None
        if not (math.isfinite(rate) and rate >= 0 and self._began_with > 0):
            raise FitError(
                f"the learning rate was set to {rate:g}, where the job began with {self._began_with:g}: servers take "
                "any number from 0 in place of one above 0"
            )
        return rate

    def _end_epoch(self, epoch: int, logs: MutableMapping[str, Any]) -> None:
        """What callbacks see of an epoch is what all workers have counted in it."""
        if self._pausing:
            self.model.stop_training = self._pausing = False
        self._epoch = epoch
        session = self._session
        if session is not None and session.worker_count > 1 and not self._finished:
            if not self._metrics.exchange(session, logs, validates=self._first):
                self.model.stop_training = True

    def _end_fit(self) -> None:
        """Before other callbacks see the end of training: on a cluster, the job's last version."""
        if self._session is None or self._stay or self._finished:
            return
        self._grant = None
        # A callback that stops this fit stops the job: its reason is as good in any other worker.
        stopped = f"a callback stopped its fit in epoch {self._epoch + 1}" if self.model.stop_training else ""
        self._session.done(stopped)
        self._finish(self._session)

    def _finish(self, session: Session) -> None:
        """The job is over: its last version into the model."""
        stop = session.stop
        if stop is None or self._finished:
            return
        self._finished = True
        self._count_fates()
        if not stop.success:
            raise SessionError(f"the job failed at version {stop.version}: {stop.reason}")
        assert self._step is not None
        self._weights = self._step.assign(list(session.pull_final()), stop.version)
        unwrapped(self._optimizer).finalize_variable_values(self.model.trainable_weights)

    def _progress(self) -> dict[str, float]:
        self._count_fates()
        total, count = self._staleness
        mean = total / count if count else 0.0
        return {"version": self.version, "staleness": mean, "dropped": self._fates.get("dropped", 0)}

    def _count_fates(self) -> None:
        if self._session is not None:
            for disposition in self._session.dispositions():
                if disposition.fate == "applied" and not disposition.version:
                    continue  # the initial values, which the first worker gives
                self._fates[disposition.fate] = self._fates.get(disposition.fate, 0) + 1
                if disposition.fate == "applied":
                    total, count = self._staleness
                    self._staleness = total + disposition.staleness, count + 1


class _Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    """First of the callbacks: what others do in the same event comes after it."""

    def __init__(self, owner: Distributed) -> None:
        super().__init__()
        self._owner = owner

    def on_train_begin(self, logs: Any = None) -> None:
        self._owner._begin_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._owner._check_weights = True
        if self._owner._dealt is not None:
            self._owner._dealt.at(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # For the progress bar, and any other callback behind this one; the history is Keras' own.
        logs.update(self._owner._progress())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._owner._end_epoch(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._owner._end_fit()


def _named(model: Any) -> list[tuple[Any, str]]:
    """The trainable variables, each with the name by which the servers know it."""
    found = collect(model)
    names = {id(variable): spec.name for variable, spec in zip(found.variables, found.specs, strict=True)}
    return [(variable, names[id(variable.value)]) for variable in model.trainable_variables]


def _set_rate(optimizer: Any) -> float | None:
    """The learning rate that was set; None where a schedule gives it, which nobody can set."""
    rate = unwrapped(optimizer)._learning_rate
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else None


def _own_randomness(variables: ModelVariables, worker_index: int) -> None:
    """Worker 0 draws what plain `fit` would; every other one has a stream of its own."""
    for variable in variables.seeds:
        own = np.random.SeedSequence([*map(int, variable.numpy()), worker_index])
        variable.assign(tf.constant(own.generate_state(2), variable.dtype))
