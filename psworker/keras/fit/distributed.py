"""`Distributed`: a compiled model whose `fit` trains on parameter servers.

Keras' `fit` runs as ever; what one batch does is replaced. The weights that
Keras sees after a batch are those of the version that the servers granted for
the next one, so callbacks, validation and metrics meet what plain `fit` would
show them. The ticket for the next batch is held between batches, epochs and,
if the job stays open, between two `fit`s.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

import keras

from pswire.logs.events import event
from psworker.engine import Grant
from psworker.errors import SessionError, Voided
from psworker.keras.errors import FitError
from psworker.keras.fit.callbacks import (
    SWAPPED,
    acts_on_batches,
    backups_of,
    guarded,
    has_weights,
    listed,
    swaps_weights,
)
from psworker.keras.fit.contributions import Contributions
from psworker.keras.fit.dealt import DealtData
from psworker.keras.fit.epochs import EpochMetrics
from psworker.keras.fit.fates import Fates
from psworker.keras.fit.gradients import GradientStep
from psworker.keras.fit.hooks import Hooks, Last, Moments
from psworker.keras.fit.membership import Membership, named
from psworker.keras.fit.rate import SetRate
from psworker.keras.translate import translate, unwrapped
from psworker.session import Session
from psworker.tensorflow.variables import ModelVariables, collect

log = logging.getLogger("ps-worker")


class Distributed:
    """A model's side of the job. `close` it, or use `with`; the end of the process does so, too.

    Not thread-safe, as `fit` is not.
    """

    def __init__(
        self, model: Any, membership: Membership, wire_dtype: str, *, stay: bool, deals: bool, shares: bool
    ) -> None:
        self.model = model
        self._membership = membership
        self._wire_dtype, self._stay = wire_dtype, stay
        self._optimizer = model.optimizer
        # Refused now, not after minutes of preparing data.
        self.optimizer = translate(model.optimizer, named(model) if model.built else ())
        self._rate = SetRate(model.optimizer)
        self._contributions = Contributions(model.optimizer, self._rate)
        self._variables: ModelVariables | None = None
        self._step: GradientStep | None = None
        self._grant: Grant | None = None
        # The payloads that the model's weights were made from.
        self._weights: list[Any] = []
        self._epoch = 0
        self._check_weights = self._finished = False
        self._metrics = EpochMetrics(model)
        # An epoch's logs are over all workers.
        self._shares = shares
        # The data of `fit` is dealt by the coordinator; that of the present fit.
        self._deals = deals
        self._dealt: DealtData | None = None
        # A callback of this fit exchanges weights and averages, and back.
        self._swaps = False
        # Those callbacks of this fit that restore weights; what one has restored, and that it was after joining.
        self._backups: list[Any] = []
        self._restored, self._late = "", False
        # A callback of this fit might set weights around any batch.
        self._each_batch = False
        # Keras is told to stop only because the next part is one of another epoch.
        self._pausing = False
        self._first = True
        self._fates = Fates()
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
        assert self._membership.session is not None
        return self._membership.session

    @property
    def version(self) -> int:
        """The version of the weights in the model; 0 before the first batch."""
        return self._grant.version if self._grant is not None else 0

    @property
    def fates(self) -> dict[str, int]:
        """How many of this worker's contributions were applied and dropped, as far as it is known."""
        self._count_fates()
        return dict(self._fates.counts)

    def close(self) -> None:
        """End this worker's part of the job; a server of one's own ends with it. The model keeps its weights.

        `model.fit` is Keras' own again. Safe to call twice.
        """
        atexit.unregister(self._at_exit)
        for name in self._plain:
            self.model.__dict__.pop(name, None)
        self.model.train_function = None
        self._plain = {}
        self._grant = None
        self._membership.close()

    def _at_exit(self) -> None:
        """A process that an exception ends is not done with its data: it leaves, and nobody waits for it."""
        error = getattr(sys, "last_value", None)
        if error is not None and self._membership.session is not None:
            self._leave(f"{type(error).__name__} in the script")
        self.close()

    def _leave(self, reason: str) -> None:
        self._grant = None
        self._membership.leave(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # In the place of Keras' own

    def _fit(self, *args: Any, **keywords: Any) -> Any:
        bound = inspect.signature(self._plain["fit"]).bind(*args, **keywords)
        if self._deals and self._membership.session is None and not self._finished:
            self._dealt = DealtData(bound.arguments)
            if self.model.optimizer.gradient_accumulation_steps:
                raise FitError(
                    'sharding="units" with gradient_accumulation_steps: expected larger batches instead'
                )
        given = bound.arguments.get("callbacks")
        theirs = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else []
        before = list(theirs)
        self._swaps, self._backups = swaps_weights(given), backups_of(given)
        self._each_batch = acts_on_batches(given)
        mine = Hooks(
            Moments(
                self._begin_fit,
                self._begin_epoch,
                self._progress,
                self._end_epoch,
                self._extent,
                self._end_fit,
            )
        )
        last, initial = Last(self._begin_dealt), self.model._initial_epoch
        around = [mine, *(guarded(each, self._is_first) for each in (before or listed(given))), last]
        if isinstance(given, keras.callbacks.CallbackList):
            mine.set_model(self.model)
            theirs[:] = around
        else:
            bound.arguments["callbacks"] = around
        self.model.evaluate = self._evaluate
        try:
            return self._plain["fit"](*bound.args, **bound.kwargs)
        except BaseException as error:
            if self._membership.place is not None:
                # Others must not wait for a contribution that will not come.
                self._leave(f"{type(error).__name__} in fit")
            raise
        finally:
            self.model.__dict__.pop("evaluate", None)
            if self._dealt is not None:
                self.model._initial_epoch = initial
            # Theirs, for another fit.
            theirs[:] = before

    def _evaluate(self, *args: Any, **keywords: Any) -> Any:
        """Keras' own; the validation of an epoch happens in worker 0, for all: its weights are one version."""
        if keywords.get("_use_cached_eval_dataset") and self._shares:
            self._metrics.remember()
            if not self._is_first():
                return {}
        return type(self.model).evaluate(self.model, *args, **keywords)

    def _is_first(self) -> bool:
        """This is worker 0, which acts for all where once is enough."""
        if self._membership.session is not None:
            return self._membership.session.worker_index == 0
        if self._membership.place is None or self._finished:
            return self._first
        index = self._membership.place.task_index
        return self.session.worker_index == 0 if index is None else index == 0

    def _make_train_function(self, force: bool = False) -> Any:
        self.model.train_function = self._train
        # fit's first batch, and every one of train_on_batch.
        self._check_weights = True
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
            self._contributions.send(self.session, self._grant, result)
            self._next()
        return result.logs

    def _next(self) -> None:
        """The next ticket, and its version into the model. At the end of the job Keras is told to stop."""
        session = self.session
        assert self._step is not None
        self._check_given()
        self._grant = None
        while (grant := session.ready()) is not None:
            self._check_restored(session, grant)
            try:
                with session.view_flat(grant, narrow=True) as flats:
                    self._weights = self._step.assign(flats, grant.version)
            except Voided as reason:
                log.info("%s", reason, extra=event("contribution_void"))
                session.abandon(grant, "cancelled")
                continue
            self._grant, self._membership.given = grant, None
            return
        self.model.stop_training = True
        self._finish(session)

    # Beginning and end

    def _open(self) -> None:
        """Start a server if need be, join the job with the model's weights, lay the step out."""
        if self._membership.session is not None:
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
        self.optimizer = translate(model.optimizer, named(model))
        self._rate.begin()
        if int(unwrapped(model.optimizer)._iterations) and not self._membership.joined_before:
            log.warning(
                "the optimizer has taken %d steps before; on the servers it begins anew, at version 0 and with nothing "
                "remembered",
                int(unwrapped(model.optimizer)._iterations),
                extra=event("optimizer_anew"),
            )
        self._variables = variables = collect(model)
        if self._deals and self._dealt is None:
            raise FitError(
                'sharding="units" joins the job with the data of fit: expected fit before .session'
            )
        dealt = {} if self._dealt is None else {"work": self._dealt.work, "epochs": self._dealt.epochs}
        session = self._membership.open(variables, self.optimizer, dealt)
        self._step = GradientStep(model, variables, session.plan, self._wire_dtype)
        self._contributions.begin(session)
        self._first = session.worker_index == 0

    def _begin_fit(self) -> None:
        if self.model.optimizer is not self._optimizer:
            raise FitError(
                "the model was compiled again after distribute(): call psworker.keras.distribute(model) again, which "
                "starts a new job with the new optimizer"
            )
        if self._membership.session is not None and self._variables is not None:
            if collect(self.model).specs != self._variables.specs:
                raise FitError(
                    "variables were frozen or thawed, or the model was changed, in the middle of a job: compile "
                    "the model and call psworker.keras.distribute(model) again, as Keras wants it compiled again, too"
                )
        self._check_weights = True
        self._restore()

    def _restore(self) -> None:
        """What `BackupAndRestore` does when training begins, in worker 0 as ever, and before this worker joins: servers
        take the weights of that moment."""
        membership, before = self._membership, self.model._initial_epoch
        found = [each.backup_dir for each in self._backups if has_weights(each)]
        session, untrained = membership.session, membership.given is not None
        self._late = session is not None and untrained
        self._restored = found[0] if found and (session is None or untrained) else ""
        if self._restored and self._late and membership.place is None:
            self._refuse_restored(1)
        index = 0 if membership.place is None else membership.place.task_index
        for backup in self._backups:
            if not (index if session is None else session.worker_index):
                backup.on_train_begin()
        if not self._restored:
            return
        if session is None and index is None:
            # Only now this worker's number is known.
            self._open()
            if not self._first:
                self.model._initial_epoch = before
        elif self._late and self._variables is not None:
            # Held against the first version, which says whether they are lost.
            membership.given = self._variables.values()

    def _begin_dealt(self) -> None:
        """Join the job before Keras counts its epochs: where others have gone through some, this fit, and its history,
        begin with the one that the job is in."""
        dealt = self._dealt
        if dealt is None:
            return
        self._prepare(dealt.first)
        if self._grant is None and self.session.stop is None:
            self._next()
        part = self._grant.part if self._grant is not None else None
        if part is not None and dealt.keras_epoch(part.epoch) > (self.model._initial_epoch or 0):
            self.model._initial_epoch = dealt.keras_epoch(part.epoch)

    def _check_given(self) -> None:
        """Weights that were set between joining and the first batch are not those that servers began with."""
        if self._membership.given is not None and self._variables is not None:
            tolerance = SWAPPED if self._swaps else 0.0
            changed = self._membership.changed(self._variables, tolerance)
            if changed is not None:
                raise FitError(
                    f"the weights of {changed!r} were set after the job was joined (`.session` joins it, with the "
                    "weights of that moment), and servers take weights at its beginning only: set or load them before, "
                    "or call psworker.keras.distribute(model) again, which starts a new job from these weights"
                )

    def _check_restored(self, session: Session, grant: Grant) -> None:
        """A worker that comes back to a running job has a backup of it; at version 0 it is one of another job."""
        if self._restored and grant.version == 0 and (self._late or session.worker_count > 1):
            self._refuse_restored(session.worker_count)
        self._restored = ""

    def _refuse_restored(self, workers: int) -> None:
        why = (
            "after the job was joined (`.session` joins it, with the weights of that moment)"
            if self._late
            else f"in a job of {workers} workers, of which any may give the weights that all begin with"
        )
        raise FitError(
            f"BackupAndRestore has a backup in {str(self._restored)!r} and cannot go on from it {why}: in every "
            "worker, load it before distribute() (model.load_weights of latest.weights.h5), give fit the "
            "initial_epoch, and BackupAndRestore an empty folder"
        )

    def _check(self) -> None:
        """What changed behind our back is refused; nothing is ignored."""
        if self._check_weights and self._weights and self._step is not None:
            self._check_weights = False
            changed = self._step.differing(self._weights, SWAPPED if self._swaps else 0.0)
            if changed is not None:
                raise FitError(
                    f"the weights of {changed!r} were changed by something else than training (set_weights, "
                    "load_weights, restore_best_weights, use_ema at the end of fit) in the middle of a job, and "
                    "servers take weights at its beginning only: call psworker.keras.distribute(model) again, which "
                    "starts a new job from these weights"
                )
            if self._swaps:
                self._step.restore(self._weights)

    def _begin_epoch(self, epoch: int) -> None:
        self._check_weights = True
        if self._dealt is not None:
            self._dealt.at(epoch)

    def _extent(self, epochs: int, left: int, batches: int) -> None:
        """Whoever asks for the status is told how far the job is."""
        session = self._membership.session
        if session is not None and self._dealt is None and not self._finished:
            every = self.model.optimizer.gradient_accumulation_steps or 1
            session.tell_extent(epochs, self._contributions.batch + left * batches // every)

    def _end_epoch(self, epoch: int, logs: MutableMapping[str, Any]) -> None:
        """What callbacks see of an epoch is what all workers have counted in it."""
        if self._pausing:
            self.model.stop_training = self._pausing = False
        self._epoch = epoch
        session = self._membership.session
        if self._shares and session is not None and session.worker_count > 1 and not self._finished:
            if not self._metrics.exchange(session, logs, validates=self._first):
                self.model.stop_training = True

    def _end_fit(self) -> None:
        """Before other callbacks see the end of training: on a cluster, the job's last version."""
        session = self._membership.session
        if session is None or self._stay or self._finished:
            return
        self._grant = None
        # A callback that stops this fit stops the job: its reason is as good in any other worker.
        stopped = f"a callback stopped its fit in epoch {self._epoch + 1}" if self.model.stop_training else ""
        session.done(stopped)
        self._finish(session)

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
        """At the end of a batch, before other callbacks."""
        self._check_weights |= self._each_batch
        self._count_fates()
        return self._fates.progress(self.version)

    def _count_fates(self) -> None:
        if self._membership.session is not None:
            self._fates.take(self._membership.session)
