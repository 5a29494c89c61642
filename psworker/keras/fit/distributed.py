"""`Distributed`: a compiled model whose `fit` trains on parameter servers.

Keras' `fit` runs as ever; what one batch does is replaced (`steps`), and so is what an epoch ends with.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

import keras

from psworker.backends.keras import FitError, backend
from psworker.keras.fit.around.callbacks import guarded, listed
from psworker.keras.fit.around.epochs import EpochMetrics
from psworker.keras.fit.around.hooks import Hooks, Last, Moments
from psworker.keras.fit.data.batches import cut, fingerprint
from psworker.keras.fit.data.dealt import DealtData
from psworker.keras.fit.dealt_epochs import DealtEpochs
from psworker.keras.fit.membership import Membership
from psworker.keras.fit.resuming import GoesOn, Resumption
from psworker.keras.fit.steps import Steps
from psworker.session import Session


class Distributed:
    """A model's side of the job. `close` it, or use `with`; the end of the process does so, too.

    Not thread-safe, as `fit` is not.
    """

    def __init__(
        self,
        model: Any,
        membership: Membership,
        wire_dtype: str,
        *,
        stay: bool,
        deals: bool,
        cuts: bool,
        shares: bool,
    ) -> None:
        self.model = model
        self._membership, self._wire_dtype = membership, wire_dtype
        self._steps = Steps(model, membership, wire_dtype, deals=deals)
        # The job stays open after a fit; the data of `fit` is dealt by the coordinator, or cut here; an epoch's logs
        # are over all workers.
        self._stay, self._deals, self._cuts, self._shares = stay, deals, cuts, shares
        self._dealt_epochs = DealtEpochs(self._steps)
        self._metrics = EpochMetrics(model, self._steps.sums)
        self._resumption = Resumption()
        # The arguments of the present fit, until its first batch.
        self._given: Mapping[str, Any] | None = None
        # Of the present fit: the first of its callbacks, and the epoch that it was told to begin with.
        self._hooks: Hooks | None = None
        self._first_epoch = 0
        # `steps_per_epoch` ends its epochs, not its data.
        self._counts_steps = False
        self._epoch = 0
        self._plain = {"fit": model.fit, "make_train_function": model.make_train_function, "save": model.save}
        model.fit = self._fit
        model.make_train_function = self._make_train_function
        # Keras' own formats save the optimizer by itself, the older HDF5 as a part of the model.
        model.save = self._saving(model.save)
        for method, function in backend().keep_state(model).items():
            self._plain[method] = getattr(model, method)
            setattr(model, method, function)
        self._see_saving()
        model.train_function = None
        OPEN.add(self)
        # A server of its own ends with its model, too: when garbage is looked for, as Keras' models are in circles.
        self._forsaken = weakref.finalize(self, _forsake, membership)
        self._forsaken.atexit = False

    # For the caller

    @property
    def session(self) -> Session:
        """The session with the servers; joins the job if that has not been done, with the weights of this moment."""
        return self._steps.session

    @property
    def optimizer(self) -> dict[str, Any]:
        """What the servers run: the `[optimizer]` that the compiled one was translated to."""
        return self._steps.optimizer

    @property
    def version(self) -> int:
        """The version of the weights in the model; 0 before the first batch."""
        return self._steps.version

    @property
    def fates(self) -> dict[str, int]:
        """How many of this worker's contributions were applied and dropped, as far as it is known."""
        self._steps.count_fates()
        return dict(self._steps.fates.counts)

    def close(self) -> None:
        """End this worker's part of the job; a server of one's own ends with it. The model keeps its weights.

        `model.fit` is Keras' own again. Servers of a cluster end when all workers have closed, or ended: another fit of
        this process on them wants it open. Safe to call twice.
        """
        self._restore()
        self._forsaken.detach()
        self._steps.close()

    def replace(self) -> None:
        """As `close`, but the servers of a cluster wait for what this process trains next."""
        if self._membership.place is None:
            self.close()
            return
        self._restore()
        self._forsaken.detach()
        self._steps.rest()

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
        """A process that an exception ends is not done with its data: it leaves, and nobody waits for it."""
        error = getattr(sys, "last_value", None)
        if error is not None and self._membership.session is not None:
            self._steps.leave(f"{type(error).__name__} in the script")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # In the place of Keras' own

    def _fit(self, *args: Any, **keywords: Any) -> Any:
        bound = inspect.signature(self._plain["fit"]).bind(*args, **keywords)
        self._begin_phase()
        self._deal(bound.arguments)
        if self._cuts:
            session = self.session
            cut(bound.arguments, session.worker_index % session.worker_count, session.worker_count)
        given = bound.arguments.get("callbacks")
        self._steps.unchanged.during(given)
        self._steps.backups.among(given)
        theirs = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else []
        before, initial = list(theirs), self.model._initial_epoch
        around = self._around(before or listed(given))
        if isinstance(given, keras.callbacks.CallbackList):
            around[0].set_model(self.model)
            theirs[:] = around
        else:
            bound.arguments["callbacks"] = around
        self.model.evaluate = self._evaluate
        self._resumption.begin_fit()
        self._given = bound.arguments
        self._first_epoch = int(bound.arguments.get("initial_epoch", 0))
        self._counts_steps = bool(bound.arguments.get("steps_per_epoch"))
        try:
            return self._run(bound)
        except BaseException as error:
            if self._membership.place is not None:
                # Others must not wait for a contribution that will not come.
                self._steps.leave(f"{type(error).__name__} in fit")
            raise
        finally:
            self.model.__dict__.pop("evaluate", None)
            if self._steps.dealt is not None or self._resumption.epochs:
                self.model._initial_epoch = initial
            self._hooks = None
            # Theirs, for another fit.
            theirs[:] = before

    def _begin_phase(self) -> None:
        """What this fit is to the one before it."""
        follows, before = self._steps.follows(), self._steps
        if follows == "the same":
            before.compiled_again()
            self._metrics.sums = before.sums
            return
        # Raises TranslationError, with nothing changed.
        steps = Steps(
            self.model,
            self._membership,
            self._wire_dtype,
            deals=self._deals,
            before=before if follows == "another phase" else None,
        )
        before.compiled.__dict__.pop("save_own_variables", None)
        before.rest()
        self._steps = steps
        self._dealt_epochs, self._metrics = DealtEpochs(self._steps), EpochMetrics(self.model, steps.sums)
        self._see_saving()

    def _saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Whatever saves the optimizer saves what the servers' one remembers."""

        @functools.wraps(save)
        def saved(*args: Any, **keywords: Any) -> Any:
            self._steps.bring_slots()
            return save(*args, **keywords)

        return saved

    def _run(self, bound: inspect.BoundArguments) -> Any:
        """Keras' fit; begun a second time where this worker has worked for the job before."""
        try:
            return self._plain["fit"](*bound.args, **bound.kwargs)
        except GoesOn:
            self._metrics.met = False
            with warnings.catch_warnings():
                # Of the epoch that it goes on in, only the rest is trained.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
                return self._plain["fit"](*bound.args, **bound.kwargs)

    def _deal(self, arguments: MutableMapping[str, Any]) -> None:
        """Of the arguments of `fit` the data is taken, where the coordinator deals it."""
        if self._deals and self._membership.session is None:
            self._steps.dealt = DealtData(arguments, apart=self._shares)
            if self.model.optimizer.gradient_accumulation_steps:
                raise FitError(
                    'sharding="units" with gradient_accumulation_steps: expected larger batches instead'
                )

    def _around(self, theirs: list[Any]) -> list[Any]:
        """The caller's callbacks between ours."""
        moments = Moments(
            self._steps.begin_fit,
            self._begin_epoch,
            self._steps.progress,
            self._end_epoch,
            self._extent,
            self._end_fit,
        )
        guards = (guarded(each, self._acts_for_all) for each in theirs)
        self._hooks = Hooks(moments)
        return [self._hooks, *guards, Last(self._begin_epochs)]

    def _evaluate(self, *args: Any, **keywords: Any) -> Any:
        """Keras' own; the validation of an epoch happens in one worker, for all: its weights are one version."""
        if keywords.get("_use_cached_eval_dataset") and self._shares:
            self._meet()
            self._metrics.awaited = True
            if not self._acts_for_all():
                return {}
        return type(self.model).evaluate(self.model, *args, **keywords)

    def _acts_for_all(self) -> bool:
        """This worker does what is done once; see `Duties`."""
        place = self._membership.place
        if self._membership.session is None and place is not None and not self._steps.finished:
            if place.task_index is not None:
                return place.task_index == 0
            # Only by joining this worker learns its number.
            assert self.session is not None
        return self._steps.duties.mine

    def _make_train_function(self, force: bool = False) -> Any:
        self.model.train_function = backend().train_function(self._train)
        # fit's first batch, and every one of train_on_batch.
        self._steps.unchanged.due = True
        return self.model.train_function

    def _train(self, iterator: Iterator[Any]) -> Mapping[str, Any]:
        """What Keras calls for every `steps_per_execution` batches. Raises StopIteration when there is no batch."""
        if self._steps.dealt is not None:
            return self._dealt_epochs.train(self._steps.dealt)
        logs: Mapping[str, Any] | None = None
        for _ in range(self.model.steps_per_execution):
            try:
                data = self._resumption.next(iterator)
            except StopIteration:
                break
            if self._membership.place is not None:
                self._place(data)
            logs = self._steps(data)
            if self._resumption.ends_epoch() and self._counts_steps:
                self._dealt_epochs.pause()
            if self.model.stop_training:
                break
        if logs is None:
            if not self._resumption.placed and hasattr(iterator, "element_spec"):
                # There was no batch at all; Keras asks the metrics for their values, which the first batch makes.
                self.model._symbolic_build(
                    data_batch=keras.tree.map_structure(_symbol, iterator.element_spec)
                )
            raise StopIteration
        return logs

    def _place(self, data: Any) -> None:
        """At the first batch of a fit: begin where this worker's part of the job is. Raises GoesOn, FitError."""
        if self._hooks is None or self._resumption.placed:
            return
        self._steps.prepare(data)
        self._metrics.data, self._given = fingerprint(self._given, data), None
        every = self.model.optimizer.gradient_accumulation_steps or 1
        # A CallbackList that the caller made may have none.
        params = self._hooks.params or {}
        epochs = (params.get("epochs") or 0) - self._first_epoch
        session = self.session
        committed = (session.next_batch - session.phase_batch) * every
        self._resumption.place(committed, params.get("steps"), epochs, session.phases_over)

    def _begin_epochs(self) -> None:
        """Keras has yet to say which epoch is the first."""
        self._dealt_epochs.begin()
        first, present = self._first_epoch + self._resumption.epochs, self.model._initial_epoch or 0
        if self._resumption.epochs and first > present:
            self.model._initial_epoch = first
        elif present > first:
            # A backup knows of epochs before the job's.
            self._resumption.end_epoch()

    # At the moments of `fit`, before other callbacks

    def _begin_epoch(self, epoch: int) -> None:
        self._steps.unchanged.due = True
        self._steps.duties.begin_epoch()
        self._metrics.met = self._dealt_epochs.trained = False
        if self._steps.dealt is not None:
            self._steps.dealt.at(epoch)

    def _extent(self, epochs: int, left: int, batches: int) -> None:
        """Whoever asks for the status is told how far the job is."""
        session, steps = self._membership.session, self._steps
        if session is not None and steps.dealt is None and not steps.finished:
            every = self.model.optimizer.gradient_accumulation_steps or 1
            session.tell_extent(epochs, steps.contributions.batch + left * batches // every)

    def _end_epoch(self, epoch: int, logs: MutableMapping[str, Any]) -> None:
        """What callbacks see of an epoch is what all workers have counted in it."""
        self._dealt_epochs.end_epoch()
        self._resumption.end_epoch()
        self._epoch = epoch
        self._meet()
        if self._metrics.met:
            duties = self._steps.duties
            if not self._metrics.exchange(self.session, logs, validates=duties.mine):
                self.model.stop_training = True
            duties.told(self._metrics.chief)

    def _meet(self) -> None:
        """At the end of an epoch's batches, before validation: wait until all workers are there."""
        session, steps = self._membership.session, self._steps
        if self._metrics.met or not self._shares or session is None or session.worker_count == 1:
            return
        if steps.dealt is None:
            # A worker without a batch has no metrics, and is done as soon as Keras is through its epochs.
            if not steps.finished and self._resumption.placed:
                self._metrics.meet(session, steps.yield_ticket)
        elif self._dealt_epochs.trained:
            # Behind the last unit, too, when the job is over.
            self._metrics.meet(session, None)

    def _end_fit(self) -> None:
        """On a cluster: the job's last version."""
        if self._resumption.passes_over:
            # Its end is that of the fit in which this worker goes on.
            return
        if (
            self._membership.place is not None
            and not self._stay
            and not self._steps.finished
            and self.model.built
        ):
            # Also of a worker without a batch: the others wait for it to come.
            assert self.session is not None
        if self._stay:
            self._steps.bring_slots()
        if self._membership.session is None or self._stay or self._steps.finished:
            return
        # A callback that stops this fit stops the job: its reason is as good in any other worker.
        stopped = f"a callback stopped its fit in epoch {self._epoch + 1}" if self.model.stop_training else ""
        self._steps.end(stopped)


def _symbol(spec: Any) -> Any:
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)


# Those of this process that are not closed.
OPEN: weakref.WeakSet[Distributed] = weakref.WeakSet()


def _forsake(membership: Membership) -> None:
    """In a thread of its own: garbage is looked for anywhere, also while locks are held."""
    if membership.place is None:
        threading.Thread(target=membership.abandon, name="forsaken model").start()


def _close_all() -> None:
    for each in list(OPEN):
        each.at_exit()


atexit.register(_close_all)
