"""Batch after batch of one worker: its ticket, the version in the model, and what it contributes.

After a batch the model holds the version that the servers granted for the next one, so callbacks, validation and
metrics see what plain `fit` would show them. The worker keeps the ticket for its next batch between batches, epochs
and, if the job stays open, between two `fit`s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from keras.src.models.functional import Functional
from numpy.typing import NDArray

from pswire.logs.events import event
from pswire.model.rows import KeysByName
from psworker.backends import StepResult
from psworker.backends.keras.function import function_of
from psworker.backends.keras.reductions import warn_of_reduction
from psworker.backends.keras.step import FitError, scales, unwrapped
from psworker.backends.keras.variables import KerasVariables, collect, draw, read
from psworker.backends.lookups import LookedUp, tables_of
from psworker.engine import Grant
from psworker.errors import SessionError
from psworker.keras.embedding import read_rows
from psworker.keras.fit.callbacks import Backups
from psworker.keras.fit.chief import Duties, begin_rate, present_rate
from psworker.keras.fit.gradients import GradientStep, move_loss_scale
from psworker.keras.fit.lookups import Lookups, checked_tables
from psworker.keras.fit.membership import FitMembership, named
from psworker.keras.fit.weights import WeightGuard
from psworker.keras.slots import assign_slots, slot_lists
from psworker.keras.translate import translate, warn_of_clipping, worker_clips
from psworker.link import Link
from psworker.local import NONFINITE_LIMIT
from psworker.turn import FateCounts, Turn, Turns

log = logging.getLogger("ps-worker")

Follows = Literal["the same", "another phase", "another job"]
"""A fit goes on in the job as it stands, in another phase of it, or begins another job."""


class Compilation(NamedTuple):
    """The result of `compile`; it differs after another call."""

    optimizer: Any
    loss: Any
    metrics: Any
    eager: bool
    jit: Any


def _compilation(model: Any) -> Compilation:
    made = model._compile_loss, model._compile_metrics, bool(model.run_eagerly), model.jit_compile
    return Compilation(model.optimizer, *made)


def is_built(model: Any) -> bool:
    """Return whether the model has all its variables. A subclassed model may say that it is built before its layers
    have any. Some layers, TextVectorization say, are never built, so those count that a functional model has called."""
    layers = list(model._flatten_layers())
    graphs = (getattr(layer, "_functional", None) or layer for layer in layers)
    called = {id(each) for graph in graphs if isinstance(graph, Functional) for each in graph.operations}
    return bool(model.built and all(layer.built or id(layer) in called for layer in layers))


class Steps:
    """One worker's part of a job, or of a phase of it, from joining to the last version.

    `before`: the phase that this one continues, with the servers' optimizer.
    """

    def __init__(self, model: Any, membership: FitMembership, *, before: Steps | None = None) -> None:
        self.model, self.membership = model, membership
        self.compiled = model.optimizer
        self._compilation = _compilation(model)
        self._goes_on = before is not None
        if before is None:
            # Refused now, not after minutes of preparing data.
            self.optimizer = self._translated(named(model) if is_built(model) else ())
            self._counts = FateCounts()
        else:
            self.optimizer = before.optimizer
            self._counts = before._counts
        # Of several workers, and of one that comes back: these decide, with the number of a batch, what its step draws.
        self._draws_of: list[int] = [] if before is None else before._draws_of
        self.duties = Duties()
        # Once a job is joined.
        self.turns: Turns | None = None
        # The learning rate that the servers have from the phase before.
        self._rate = None if before is None or before.turns is None else before.turns.rate
        self._variables: KerasVariables | None = None
        self._step: GradientStep | None = None
        self.turn: Turn | None = None
        self._version = 0 if before is None else before.version
        # The version whose slots the model's optimizer has.
        self._slots_of = 0
        self.guard, self.backups = WeightGuard(), Backups()
        self.lookups: Lookups | None = None
        # This worker's part of the job is over.
        self.finished = False
        # The model has been called with a batch.
        self._called = False
        #: The types of batches, where the data says them: their first axis is open where batches differ in size.
        self.types: Any = None

    @property
    def link(self) -> Link:
        """The session; joins the job first if need be, with the weights of this moment."""
        if self.membership.link is None:
            self._open()
        assert self.membership.link is not None
        return self.membership.link

    @property
    def version(self) -> int:
        """The version of the weights in the model; 0 before the first batch."""
        return self._version

    @property
    def grant(self) -> Grant | None:
        """The ticket of the present turn."""
        return None if self.turn is None else self.turn.grant

    # Beginning

    def _open(self) -> None:
        """Start a server if need be, join the job with the model's weights, and prepare the step."""
        model = self.model
        self._check_joins()
        tables = checked_tables(model)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if not self._goes_on:
            self.optimizer = self._translated(named(model))
            self._warn_of_steps_before()
        self._variables = variables = collect(model)
        more: dict[str, Any] = {"tables": tables} if tables else {}
        if not self.membership.alone:
            more["function"] = function_of(model, model.loss)
        link = self.membership.open(variables, self.optimizer, more, goes_on=self._goes_on)
        read_rows(model, link.lookup)
        if (link.info.size > 1 or link.info.next_batch) and not self._goes_on:
            # A process that is started again draws the same.
            self._draws_of = [*(int(part) for seed in variables.seeds for part in read(seed)), link.info.rank]
        self._step = self._traced(variables, link)
        self.lookups = Lookups(self._step.find) if tables else None
        if not self._goes_on:
            self._rate = begin_rate(model.optimizer, link.info.learning_rate)
            warn_of_clipping(model.optimizer, self.optimizer, link.info.size)
        self.turns = Turns(link, self._put, rate=self._rate, counts=self._counts)
        self.duties.join(link)
        if link.info.size > 1:
            warn_of_reduction(model.loss, model)

    def _translated(self, trained: Sequence[tuple[Any, str]]) -> dict[str, Any]:
        # Nobody but the worker has the norm of a gradient that is rows in part.
        servers = 2 if tables_of(self.model._flatten_layers()) else self.membership.connection.parts
        return translate(self.model.optimizer, trained, servers=servers)

    def _traced(self, variables: KerasVariables, link: Link) -> GradientStep:
        return GradientStep(
            self.model,
            variables,
            link.plan,
            self.membership.connection.wire_dtype,
            self._version,
            self._step,
            clips=worker_clips(self.model.optimizer, self.optimizer),
        )

    def _check_joins(self) -> None:
        if not (self._called or is_built(self.model)):
            raise FitError(
                "the model has no variables yet: build it, or let fit see its first batch before joining"
            )

    def _warn_of_steps_before(self) -> None:
        taken = int(unwrapped(self.model.optimizer)._iterations)
        if taken:
            log.warning(
                "the optimizer has taken %d steps before; on the servers it begins anew, at version 0 and with nothing "
                "remembered",
                taken,
                extra=event("optimizer_anew"),
            )

    def follows(self) -> Follows:
        """Say what the next fit is to the job of this one. Raises FitError.

        Servers take another optimizer, another model, and variables that something else than training has changed, at
        the beginning of a job only.
        """
        variables, now = self._variables, _compilation(self.model)
        if now.optimizer is not self.compiled:
            return "another job"
        if variables is not None and collect(self.model).specs != variables.specs:
            if now == self._compilation:
                raise FitError(
                    "variables were frozen or thawed, or the model was changed, since compile(): compile the model "
                    "again before fit, as Keras wants it, too"
                )
            return "another job"
        if not self.finished:
            return "the same"
        trained = self._step is not None and self._step.unchanged
        return "another phase" if trained and not self.membership.went_on else "another job"

    def compiled_again(self) -> None:
        """Trace the step anew if the model was compiled again, with the same optimizer."""
        now, before = _compilation(self.model), self._step
        if now != self._compilation and before is not None and self._variables is not None:
            self._step = self._traced(self._variables, self.link)
            self.lookups = Lookups(self._step.find) if self.lookups is not None else None
        self._compilation = now

    def begin_fit(self) -> None:
        """Begin a fit, before other callbacks see the beginning of training."""
        self.guard.due = True
        self.backups.restore(self.model, self.membership, self._variables, lambda: self.link.info.rank == 0)

    # One batch

    def prepare(self, data: Any) -> None:
        """Join, and trace the step for batches such as `data`."""
        if not is_built(self.model):
            self.model._symbolic_build(data_batch=data)
            # Layers that are not built now have nothing to build.
            self._called = True
        if self.membership.link is None:
            self._open()
        assert self._step is not None
        shown = data if self.types is None else self.types
        self._step.prepare(shown if self.lookups is None else replace(self.lookups.of(data), batch=shown))
        self._step.types = self.types

    def __call__(self, data: Any, following: Callable[[], Any] = lambda: None) -> Mapping[str, Any]:
        """Train on one batch, and return the logs of Keras' own step.

        `following`: looks at the next batch, None where nobody knows it. Raises FitError where the batch could not
        count.
        """
        if self.finished:
            raise FitError(
                "this worker's part of the job has ended, and this batch would not count: expected it in a fit, which "
                "begins another phase, or distribute(model, stay=True), which keeps the job open between two calls"
            )
        if self._step is None or self._step.types != self.types:
            self.prepare(data)
        assert self._step is not None
        if self.turn is None:
            self._next()
        assert self.turns is not None
        self.guard.check(self._step)
        after, lookups = None, self.lookups
        if lookups is not None:
            data = self._with_rows(lookups.of(data))
            if (after := following()) is not None:
                lookups.begin(after)
        if self._draws_of and self._variables is not None:
            draw(self._variables.seeds, [*self._draws_of, self._step.number(self.turns.batch)])
        logs, result = self._step(data)
        if result is not None and self.turn is not None:
            self._send(self.turn, result, {} if lookups is None else lookups.keys(after))
            self._next()
        return logs

    def _send(self, turn: Turn, result: StepResult, ahead: KeysByName) -> None:
        """Contribute the result. Raises Diverged, FitError."""
        optimizer, turns = self.compiled, self.turns
        assert turns is not None
        if scales(optimizer) and not move_loss_scale(optimizer, result.norm):
            turns.bad = min(turns.bad, NONFINITE_LIMIT - 2)  # halving is meant to take several batches
        turn.send(
            result.payloads,
            samples=result.samples,
            loss=result.loss,
            norm=result.norm,
            rate=present_rate(optimizer) if self.duties.mine else None,
            rows=result.rows,
            ahead=ahead,
        )

    def _with_rows(self, batch: LookedUp) -> LookedUp:
        """Return the batch with its rows of the granted version, or of that of another turn. At the end of the job the
        batch does not count, and gets none."""
        while self.turn is not None:
            with self.turn:
                return replace(batch, rows=self.link.pull_rows(self.turn.grant, batch.keys))
            self._next()
        return batch

    def _next(self) -> None:
        """Get the next turn, and put its version into the model. At the end of the job, stop Keras."""
        link = self.link
        assert self.turns is not None
        self.guard.check_given(self.membership, self._variables)
        self.turn = None
        self.turn = self.turns.next()
        if self.turn is None:
            self.model.stop_training = True
            self._finish(link)
            return
        self.membership.given = None
        self._version = self.turn.grant.version

    def _put(self, flats: Sequence[NDArray[Any]], grant: Grant) -> None:
        assert self._step is not None
        self.backups.check(self.link, grant)
        self._step.assign(flats, grant.version)

    def yield_ticket(self) -> None:
        """Contribute nothing: other workers, with batches left in this epoch, wait for this worker's ticket."""
        if self.turn is not None:
            self.turn.send_nothing()
            self._next()

    # End

    def end(self, reason: str) -> None:
        """End this worker's part: wait for the others, then take the job's last version. `reason`: why the job is to
        end for all at once; empty where it is not."""
        self.turn = None
        link = self.link
        link.done(reason)
        self._finish(link)

    def _finish(self, link: Link) -> None:
        """Put the job's last version into the model, once the job is over."""
        stop = link.stop
        if stop is None or self.finished:
            return
        self.finished = True
        self.fates()
        if not stop.success:
            raise SessionError(f"the job failed at version {stop.version}: {stop.reason}")
        assert self._step is not None
        self._step.assign(list(link.pull_final()), stop.version)
        self._version = stop.version
        self.bring_slots()
        unwrapped(self.compiled).finalize_variable_values(self.model.trainable_weights)

    def bring_slots(self) -> None:
        """Give the model's optimizer the servers' slots at the version of the weights, so that plain Keras can go on.

        Where other workers make versions meanwhile, they may be of a later one.
        """
        link, optimizer = self.membership.link, self.compiled
        held = self.turn is not None or self.finished
        if link is None or self._variables is None or not held or self._slots_of == self._version:
            return
        lists = slot_lists(optimizer)
        try:
            found = link.pull_slots(len(lists), self.grant) if lists else []
        except SessionError as error:
            log.warning(
                "the model's optimizer has nothing of what the servers' optimizer remembers: %s; compile the model "
                "anew before you train it without servers",
                error,
                extra=event("slots_missing"),
            )
            return
        keys = [id(variable) for variable in self._variables.variables]
        assign_slots(optimizer, [dict(zip(keys, each, strict=True)) for each in found], self._version)
        self._slots_of = self._version

    def rest(self) -> None:
        """End this part; another one follows on the same servers."""
        self.turn = None
        self.membership.rest()

    def leave(self, reason: str) -> None:
        """Leave before the end, so that nobody waits for this worker."""
        self.turn = None
        self.membership.leave(reason)

    def close(self) -> None:
        """End this part, and the server that was started for this process."""
        self.turn = None
        self.membership.close()

    # Fates

    def fates(self) -> dict[str, int]:
        """Return how many contributions had each fate, as the servers have reported."""
        return self._counts.counts if self.turns is None else self.turns.fates

    def progress(self) -> dict[str, float]:
        """Values for the progress bar, at the end of a batch and before other callbacks."""
        self.guard.after_batch()
        dropped = self.fates().get("dropped", 0)
        return {"version": self._version, "staleness": self._counts.staleness, "dropped": dropped}
