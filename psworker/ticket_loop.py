"""Tickets of a training loop: for each one the grant, the version, gradients, the contribution, and what becomes of it.

Where the local rule goes on while a contribution travels, that is done in a thread (`psworker.travelling`).
"""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from pswire.logs.events import event
from psworker.data.payloads import payloads_of
from psworker.engine import Disposition, Grant
from psworker.errors import PayloadRefused, Voided
from psworker.evaluating import Evaluations
from psworker.local import (
    PLAIN,
    LocalWork,
    Result,
    RowTrainer,
    TicketBatches,
    Trainer,
    gradient_of,
    tables_of,
)
from psworker.local.inner import InnerSteps
from psworker.local.rule import Flats
from psworker.session import Session
from psworker.travelling import Arrived, Travelling
from psworker.work import UnitSource

log = logging.getLogger("ps-worker")

# An injected delay, called after a gradient is computed and before it is pushed.
Pause = Callable[[], None]


@dataclass(slots=True)
class TicketLoop:
    """Works on the tickets of one pass. `committed(loss, dispositions)` is called after every commit."""

    session: Session
    trainer: Trainer
    work: LocalWork
    pause: Pause
    committed: Callable[[float, list[Disposition]], None]
    evaluations: Evaluations | None = None
    # Under a rule with `overlap`: the contribution that travels, and what came back.
    _travelling: Travelling | None = None
    _arrived: Arrived | None = None

    def step(self, batches: TicketBatches) -> bool:
        """Contribute the batches of one ticket, under another grant after each cancel. False: not finite."""
        finite = self.land(batches)
        if self.work.has_own_weights and not self._take_steps(batches):
            return False
        while self.work.can_use(batches) and (grant := self._grant()) is not None:
            committed = self.attempt(batches, grant)
            if committed is not None:
                return committed and finite
        return finite

    def land(self, batches: TicketBatches | None = None) -> bool:
        """Wait for the contribution that travels, if one does, after the first steps of the next `batches`.

        False: the servers refused it.
        """
        travelling, self._travelling = self._travelling, None
        if travelling is None:
            return True
        taken = None if batches is None else self._go_on(batches)
        try:
            travelling.wait()
        except (Voided, PayloadRefused) as reason:
            return self._lost(travelling.grant, travelling.named, reason) is None
        self._kept(travelling.result, taken)
        self._arrived = travelling.arrived()
        return True

    def attempt(self, batches: TicketBatches, grant: Grant, source: UnitSource | None = None) -> bool | None:
        """Contribute the batches under one grant. None: the ticket was cancelled, perhaps while its commit was under
        way. False: a gradient is not finite.

        `source`: where dealt batches come from. The coordinator, not the loop, then knows whether more follow.
        """
        session, evaluations = self.session, self.evaluations
        try:
            result = self._payload(batches, grant)
            pending = evaluations is not None and evaluations.pending
            more = batches.more and not self.work.steps_before_pull
            more_rows = (
                {} if not tables_of(self.trainer) else self._rows_of(result, batches if more else None)
            )
            # Steps before a pull, and an evaluation, come before the next ticket is asked for.
            ready = not pending and (source is not None or more)
            send = partial(
                session.contribute,
                grant,
                payloads_of(result),
                samples=result.samples,
                loss=result.loss,
                batch=batches.last,
                ready=ready,
                learning_rate=None if evaluations is None else evaluations.learning_rate,
                unit_ends=source is not None and source.ends(),
                **more_rows,
            )
            if self.work.overlap and ready:
                self._travelling = Travelling(session, send, grant, result, _named(batches))
                return True
            send()
        except (Voided, PayloadRefused) as reason:
            return self._lost(grant, _named(batches), reason)
        self._kept(result)
        return True

    def _lost(self, grant: Grant, named: str, reason: Voided | PayloadRefused) -> bool | None:
        """Give a ticket back that came to nothing. None: it was cancelled. False: it is not finite."""
        if isinstance(reason, Voided):
            log.info("%s", reason, extra=event("contribution_void"))
            self.session.abandon(grant, "cancelled")
            return None
        log.warning("%s skipped: %s", named, reason, extra=event("batch_skipped"))
        self.session.abandon(grant, "nonfinite")
        return False

    def _kept(self, result: Result, taken: InnerSteps | None = None) -> None:
        """Take note of a committed contribution; `taken`: as of `LocalWork.keep`."""
        session, evaluations = self.session, self.evaluations
        self.work.keep(taken)
        self.committed(result.loss, session.dispositions())
        if evaluations is not None:
            evaluations.committed()
            if session.stop is None:
                evaluations.measure()

    def _grant(self) -> Grant | None:
        return self.session.ready() if self._arrived is None else self._arrived.grant

    def _rows_of(self, result: Any, batches: TicketBatches | None) -> dict[str, Any]:
        """Return the gradients of rows to push, and the keys of the rows that the next batch needs, if it is known."""
        assert isinstance(self.trainer, RowTrainer)
        following = None if batches is None else batches.following
        return {
            "rows": result.rows,
            "ahead": {} if following is None else self.trainer.keys(following),
        }

    def _payload(self, batches: TicketBatches, grant: Grant) -> Result:
        """Pull, and compute what to push. Raises Voided, and PayloadRefused when it is not finite."""
        work, (arrived, self._arrived) = self.work, (self._arrived, None)
        work.renew(self.session.membership)
        if not work.can_use(batches):
            raise Voided(f"{_named(batches)} used up by a ticket of another incarnation")
        if tables_of(self.trainer):
            (batch,) = batches
            assert isinstance(self.trainer, RowTrainer)
            self.session.want_rows(self.trainer.keys(batch))
        with self._weights(grant, arrived) as weights:
            if self.evaluations is not None:
                self.evaluations.take(grant, weights)
            gradients = Gradients(self.session, self.trainer, self.pause, batches, grant)
            result = work.payload(weights, gradients, batches, grant.version)
        if gradients.taken:
            self.pause()
        if not math.isfinite(result.norm):
            raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
        return result

    def _weights(self, grant: Grant, arrived: Arrived | None) -> AbstractContextManager[list[Any]]:
        """Hold the granted version: in place if it is read once, a copy for several steps.

        In the wire dtype for a trainer that accepts it, unless a local rule computes with it.
        """
        session = self.session
        if self.work.steps == 1 or self.work.steps_taken:
            return session.view_flat(grant, narrow=self.trainer.narrow and session.local_rule == PLAIN)
        here = None if arrived is None else arrived.weights
        return nullcontext(session.pull_flat(grant) if here is None else here)

    def _go_on(self, batches: TicketBatches) -> InnerSteps | None:
        """Take the steps of a ticket that need no version. None: the job is over."""
        try:
            taken = self.work.go_on(Gradients(self.session, self.trainer, self.pause, batches), batches)
        except Voided:
            return None
        self.pause()
        return taken

    def _take_steps(self, batches: TicketBatches) -> bool:
        """Take the steps that come before the grant. False: a gradient is not finite."""
        try:
            taken = self.work.take_steps(Gradients(self.session, self.trainer, self.pause, batches), batches)
        except Voided:
            return True  # the job is over
        self.pause()
        if not taken.finite:
            log.warning(
                "%s skipped: the gradient's norm is %s (loss %s)",
                *(_named(batches), taken.norm, taken.loss),
                extra=event("batch_skipped"),
            )
        return taken.finite


@dataclass(slots=True)
class Gradients:
    """The trainer's step, with the injected delay between two steps; fetches the next version during the last one.

    Raises Voided between two steps when the ticket was cancelled or the job is over.
    """

    session: Session
    trainer: Trainer
    pause: Pause
    batches: TicketBatches
    grant: Grant | None = None
    taken: int = 0

    def __call__(self, weights: Flats, batch: Any) -> Result:
        if self.taken:
            self.pause()
            if self.session.stop is not None:
                raise Voided("the job is over")
            if self.grant is not None and self.session.cancelled(self.grant):
                raise Voided(f"ticket {self.grant.ticket} was cancelled after {self.taken} steps")
        self.taken += 1
        if self.grant is not None and self.batches.followed:
            self._fetch_ahead(self.grant)
        return gradient_of(self.trainer, self._rows)(weights, batch)

    def _fetch_ahead(self, grant: Grant) -> None:
        """With prefetch, let the next batch's version and rows be fetched meanwhile."""
        session, trainer, following = self.session, self.trainer, self.batches.following
        if not session.prefetches:
            return
        if not tables_of(trainer) or following is None:
            session.prefetch(grant)
            return
        assert isinstance(trainer, RowTrainer)
        session.prefetch(grant, trainer.keys(following))

    def _rows(self, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        # Tables are refused under rules whose steps come before the grant.
        assert self.grant is not None
        return self.session.pull_rows(self.grant, keys)


def _named(batches: TicketBatches) -> str:
    if batches.first == batches.last:
        return f"batch {batches.first} is"
    return f"batches {batches.first} to {batches.last} are"
