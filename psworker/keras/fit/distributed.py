"""`Distributed`: a compiled model whose `fit` trains on parameter servers.

Keras' own `fit` runs; what it does for a batch (`steps`) and at the end of an epoch is replaced.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Self

import keras

from psworker.backends.keras.step import FitError, backend
from psworker.keras.exporting import export
from psworker.keras.fit.callbacks import First, FitMoments, Last, guarded, listed
from psworker.keras.fit.data import cut, fingerprint
from psworker.keras.fit.lookups import OneAhead, check_callbacks
from psworker.keras.fit.membership import FitMembership
from psworker.keras.fit.metrics import EpochMetrics
from psworker.keras.fit.resuming import GoesOn, Resumption
from psworker.keras.fit.steps import Steps
from psworker.session import Session

log = logging.getLogger("ps-worker")


class Distributed:
    """A model's side of the job; `distribute` makes it. `close` it, or use `with`; the end of the process does so, too.

    Not thread-safe, as `fit` is not.
    """

    def __init__(
        self,
        model: Any,
        membership: FitMembership,
        *,
        stay: bool,
        cuts: bool,
        shares: bool,
    ) -> None:
        self.model = model
        self._membership = membership
        self._steps = Steps(model, membership)
        # The job stays open after a fit; its data is cut here; an epoch's logs cover all workers.
        self._stay, self._cuts, self._shares = stay, cuts, shares
        # Keras stops only because this worker's part of the epoch has ended.
        self._pausing = False
        self._metrics = EpochMetrics(model)
        self._resumption = Resumption()
        self._one_ahead = OneAhead()
        # The arguments of the present fit, until its first batch.
        self._given: Mapping[str, Any] | None = None
        # Of the present fit: its first callback, and its argument `initial_epoch`.
        self._first: First | None = None
        self._first_epoch = 0
        # `steps_per_epoch` ends its epochs, not its data.
        self._counts_steps = False
        self._epoch = 0
        saves = {"save": model.save, "save_weights": model.save_weights}
        self._plain = {"fit": model.fit, "make_train_function": model.make_train_function, **saves}
        model.fit = self._fit
        model.make_train_function = self._make_train_function
        # Keras' own formats save the optimizer by itself, the older HDF5 as a part of the model.
        model.save, model.save_weights = self._saving(model.save), self._saving(model.save_weights)
        for method, function in backend().keep_state(model).items():
            self._plain[method] = getattr(model, method)
            setattr(model, method, function)
        self._see_saving()
        model.train_function = None
        OPEN.add(self)
        # A server of this process ends with its model: at a collection of garbage, as Keras' models are in cycles.
        self._forsaken = weakref.finalize(self, _forsake, membership)
        self._forsaken.atexit = False

    # For the caller

    @property
    def session(self) -> Session:
        """The session with the servers; joins the job first if need be, with the weights of this moment."""
        return Session(self._steps.link, self._steps.turns)

    @property
    def optimizer(self) -> dict[str, Any]:
        """The servers' `[optimizer]`, to which the compiled one was translated."""
        return self._steps.optimizer

    @property
    def version(self) -> int:
        """The version of the weights in the model; 0 before the first batch."""
        return self._steps.version

    @property
    def fates(self) -> dict[str, int]:
        """Number of this worker's contributions by fate ("applied", "dropped"), as the servers have reported."""
        return dict(self._steps.fates())

    def export(self) -> Any:
        """Return a copy of the model as plain Keras, with the rows of its `RemoteEmbedding` layers in `Embedding`s.

        At the version of the weights in the model; where other workers make versions meanwhile, rows may be of a later
        one. Ids that have no row give zeros. Raises ModelError as `psworker.keras.export`, FitError before the first
        batch.
        """
        link, grant, steps = self._membership.link, self._steps.grant, self._steps
        if link is None or (grant is None and not steps.finished):
            raise FitError("export() takes rows of a version: expected it after fit, and before close")
        return export(self.model, lambda table: link.pull_table(table, grant))

    def close(self) -> None:
        """End this worker's part of the job, and the server of this process. The model keeps its weights.

        `model.fit` is Keras' own again. Servers of a cluster end when all workers have closed, or ended: another fit of
        this process on them wants it open. Safe to call twice.
        """
        self._end(self._steps.close)

    def replace(self) -> None:
        """Close, but let the servers of a cluster wait for what this process trains next."""
        self._end(self._steps.close if self._membership.alone else self._steps.rest)

    def _end(self, end: Callable[[], None]) -> None:
        self._restore()
        self._forsaken.detach()
        end()

    def _restore(self) -> None:
        OPEN.discard(self)
        for name in self._plain:
            self.model.__dict__.pop(name, None)
        self._steps.compiled.__dict__.pop("save_own_variables", None)
        self.model.train_function = None
        self._plain = {}

    def _see_saving(self) -> None:
        optimizer = self._steps.compiled
        object.__setattr__(optimizer, "save_own_variables", self._saving(optimizer.save_own_variables))

    def at_exit(self) -> None:
        """Close at the end of the process; leave where an exception ends it, so that nobody waits for its data."""
        error = getattr(sys, "last_value", None)
        if error is not None and self._membership.link is not None:
            self._steps.leave(f"{type(error).__name__} in the script")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Replacements of Keras' methods

    def _fit(self, *args: Any, **keywords: Any) -> Any:
        bound = inspect.signature(self._plain["fit"]).bind(*args, **keywords)
        self._begin_phase()
        if self._cuts:
            link = self._steps.link
            cut(bound.arguments, link.info.rank % link.info.size, link.info.size)
        given = bound.arguments.get("callbacks")
        check_callbacks(self.model, listed(given))
        self._steps.guard.begin_fit(given)
        self._steps.backups.among(given)
        theirs = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else []
        before, initial = list(theirs), self.model._initial_epoch
        callbacks = self._between_ours(before or listed(given))
        if isinstance(given, keras.callbacks.CallbackList):
            callbacks[0].set_model(self.model)
            theirs[:] = callbacks
        else:
            bound.arguments["callbacks"] = callbacks
        self.model.evaluate = self._evaluate
        self._resumption.begin_fit()
        self._given = bound.arguments
        self._first_epoch = int(bound.arguments.get("initial_epoch", 0))
        self._counts_steps = bool(bound.arguments.get("steps_per_epoch"))
        try:
            return self._run(bound)
        except BaseException as error:
            if not self._membership.alone:
                # Others must not wait for a contribution that will not come.
                self._steps.leave(f"{type(error).__name__} in fit")
            raise
        finally:
            self.model.__dict__.pop("evaluate", None)
            if self._resumption.epochs:
                self.model._initial_epoch = initial
            self._first = None
            # Theirs, for another fit.
            theirs[:] = before

    def _begin_phase(self) -> None:
        """Continue the job of the fit before this one, or begin another phase or job."""
        follows, before = self._steps.follows(), self._steps
        if follows == "the same":
            before.compiled_again()
            return
        # Raises TranslationError, with nothing changed.
        goes_on = before if follows == "another phase" else None
        steps = Steps(self.model, self._membership, before=goes_on)
        before.compiled.__dict__.pop("save_own_variables", None)
        before.rest()
        self._steps = steps
        self._metrics = EpochMetrics(self.model)
        self._see_saving()

    def _saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Let `save` write the servers' slots, too."""

        @functools.wraps(save)
        def saved(*args: Any, **keywords: Any) -> Any:
            self._steps.bring_slots()
            return save(*args, **keywords)

        return saved

    def _run(self, bound: inspect.BoundArguments) -> Any:
        """Run Keras' fit; a second time where this worker has worked for the job before."""
        try:
            return self._plain["fit"](*bound.args, **bound.kwargs)
        except GoesOn:
            self._metrics.met = False
            with warnings.catch_warnings():
                # It trains only the rest of the epoch that it goes on in.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
                return self._plain["fit"](*bound.args, **bound.kwargs)

    def _between_ours(self, theirs: list[Any]) -> list[Any]:
        """Put the caller's callbacks between ours."""
        moments = FitMoments(
            self._steps.begin_fit,
            self._begin_epoch,
            self._steps.progress,
            self._end_epoch,
            self._extent,
            self._end_fit,
        )
        guards = (guarded(each, self._acts_for_all) for each in theirs)
        self._first = First(moments)
        return [self._first, *guards, Last(self._begin_epochs)]

    def _evaluate(self, *args: Any, **keywords: Any) -> Any:
        """Evaluate as Keras does; but only the chief validates at the end of an epoch, for all, on one version."""
        if keywords.get("_use_cached_eval_dataset") and self._shares:
            self._meet()
            self._metrics.awaited = True
            if not self._acts_for_all():
                return {}
        return type(self.model).evaluate(self.model, *args, **keywords)

    def _acts_for_all(self) -> bool:
        """Return whether this worker is the chief; see `Duties`."""
        membership = self._membership
        if membership.link is None and not membership.alone and not self._steps.finished:
            if membership.connection.task_index is not None:
                return membership.connection.task_index == 0
            # Only by joining this worker learns its number.
            assert self._steps.link is not None
        return self._steps.duties.mine

    def _make_train_function(self, force: bool = False) -> Any:
        self.model.train_function = backend().train_function(self._train)
        # fit's first batch, and every one of train_on_batch.
        self._steps.guard.due = True
        return self.model.train_function

    def _train(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """Train on `steps_per_execution` batches. Raises StopIteration when there is none."""
        logs: Mapping[str, Any] | None = None
        self._steps.types = getattr(iterator, "element_spec", None)
        for _ in range(self.model.steps_per_execution):
            try:
                data = self._resumption.next(self._one_ahead.over(iterator))
            except StopIteration:
                break
            if not self._membership.alone:
                self._place(data)
            logs = self._steps(data, following=self._one_ahead.following)
            if self._resumption.ends_epoch() and self._counts_steps:
                self._pausing = not self.model.stop_training
                self.model.stop_training = True
            if self.model.stop_training:
                break
        if logs is None:
            if not self._resumption.placed and hasattr(iterator, "element_spec"):
                # There was no batch at all; Keras asks for metrics, which the first batch makes.
                types = keras.tree.map_structure(
                    lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), iterator.element_spec
                )
                self.model._symbolic_build(data_batch=types)
            raise StopIteration
        return logs

    def _place(self, data: Any) -> None:
        """Begin, at the first batch of a fit, where this worker's part of the job is. Raises GoesOn, FitError."""
        if self._first is None or self._resumption.placed:
            return
        self._steps.prepare(data)
        self._metrics.data, self._given = fingerprint(self._given, data), None
        every = self.model.optimizer.gradient_accumulation_steps or 1
        # A CallbackList that the caller made may have none.
        params = self._first.params or {}
        epochs = (params.get("epochs") or 0) - self._first_epoch
        link = self._steps.link
        committed = (link.info.next_batch - link.info.phase_batch) * every
        self._resumption.place(committed, params.get("steps"), epochs, link.info.phases_over)

    def _begin_epochs(self) -> None:
        """Choose the first epoch, before Keras does."""
        first, present = self._first_epoch + self._resumption.epochs, self.model._initial_epoch or 0
        if self._resumption.epochs and first > present:
            self.model._initial_epoch = first
        elif present > first:
            # A backup knows of epochs before the job's.
            self._resumption.end_epoch()

    # Moments of `fit`, before other callbacks

    def _begin_epoch(self, epoch: int) -> None:
        self._steps.guard.due = True
        self._steps.duties.begin_epoch()
        self._metrics.met = False

    def _extent(self, epochs: int, left: int, batches: int) -> None:
        """Report how much there is to train, for the status."""
        link, steps = self._membership.link, self._steps
        if link is not None and steps.turns is not None and not steps.finished:
            every = self.model.optimizer.gradient_accumulation_steps or 1
            link.tell_extent(epochs, steps.turns.batch + left * batches // every)

    def _end_epoch(self, epoch: int, logs: MutableMapping[str, Any]) -> None:
        """Give callbacks the logs of an epoch over all workers."""
        if self._pausing:
            self.model.stop_training = self._pausing = False
        self._resumption.end_epoch()
        self._epoch = epoch
        self._meet()
        if self._metrics.met:
            duties = self._steps.duties
            if not self._metrics.exchange(self._steps.link, logs, validates=duties.mine):
                self.model.stop_training = True
            duties.end_epoch(self._metrics.chief)
        else:
            self._tell_alone(logs)

    def _tell_alone(self, logs: Mapping[str, Any]) -> None:
        """As the only worker of a job on servers, tell what it validated."""
        link, steps = self._membership.link, self._steps
        if link is None or self._membership.alone or link.info.size > 1:
            return
        if not steps.finished:
            self._metrics.tell(link, logs)

    def _meet(self) -> None:
        """Wait for all workers at the end of an epoch's batches, before validation."""
        link, steps = self._membership.link, self._steps
        if self._metrics.met or not self._shares or link is None or link.info.size == 1:
            return
        # A worker without a batch has no metrics, and is done as soon as Keras is through its epochs.
        if not steps.finished and self._resumption.placed:
            self._metrics.meet(link, steps.yield_ticket)

    def _end_fit(self) -> None:
        """Take the job's last version, on a cluster."""
        if self._resumption.passes_over:
            # Its end is that of the fit in which this worker goes on.
            return
        if not self._membership.alone and not self._stay and not self._steps.finished and self.model.built:
            # A worker without a batch joins, too, because the others wait for it.
            assert self._steps.link is not None
        if self._stay:
            self._steps.bring_slots()
        if self._membership.link is None or self._stay or self._steps.finished:
            return
        # A callback that stops this fit stops the job: its reason is as good in any other worker.
        stopped = f"a callback stopped its fit in epoch {self._epoch + 1}" if self.model.stop_training else ""
        self._steps.end(stopped)


# All of this process that are not closed.
OPEN: weakref.WeakSet[Distributed] = weakref.WeakSet()


def _forsake(membership: FitMembership) -> None:
    if membership.alone:
        # In a thread of its own: garbage is collected anywhere, also while locks are held.
        threading.Thread(target=membership.abandon, name="forsaken model").start()


@atexit.register
def _close_all() -> None:
    for each in list(OPEN):
        each.at_exit()
