"""The batches of one ticket, readable from top to bottom: grant, pull, gradients, push, commit.

How many gradients there are between pull and push, and what is made of them,
is decided by the local rule (`psworker.local`): usually it is one, pushed as it is.
"""

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from psworker.data.payloads import payloads_of
from psworker.engine import Disposition, Grant
from psworker.errors import PayloadRefused, Voided
from psworker.evaluating import Evaluations
from psworker.local import PLAIN, LocalWork, Result, TicketBatches, Trainer
from psworker.session import Session
from psworker.work.source import UnitSource

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TicketLoop:
    """What every ticket of one pass through the data is worked on with.

    `pause` is called after every gradient, before it is pushed: an injected delay. `committed(loss, fates)` is called
    after every commit. `evaluations`: what is measured meanwhile.
    """

    session: Session
    trainer: Trainer
    work: LocalWork
    pause: Callable[[], None]
    committed: Callable[[float, list[Disposition]], None]
    evaluations: Evaluations | None = None

    def step(self, batches: TicketBatches) -> bool:
        """The batches of one ticket, with a fresh grant whenever it is cancelled. False: a gradient is not finite."""
        if self.work.has_own_weights and not self._take_steps(batches):
            return False
        while self.work.can_use(batches) and (grant := self.session.ready()) is not None:
            committed = self.attempt(batches, grant)
            if committed is not None:
                return committed
        return True

    def attempt(self, batches: TicketBatches, grant: Grant, source: UnitSource | None = None) -> bool | None:
        """The batches under one grant. None: the ticket was cancelled, perhaps while its commit was on the way. False:
        a gradient is not finite.

        `source`: where dealt batches come from; the coordinator knows then whether there are more.
        """
        session, evaluations = self.session, self.evaluations
        try:
            result = self._payload(batches, grant)
            pending = evaluations is not None and evaluations.pending
            more = batches.more and not self.work.steps_before_pull
            session.contribute(
                grant,
                payloads_of(result),
                samples=result.samples,
                loss=result.loss,
                batch=batches.last,
                # Steps that come before a pull come before asking for it, too, and so does an evaluation.
                ready=not pending and (source is not None or more),
                learning_rate=None if evaluations is None else evaluations.learning_rate,
                unit_ends=source is not None and source.ends(),
            )
        except Voided as reason:
            log.info("%s", reason, extra=event("contribution_void"))
            session.abandon(grant, "cancelled")
            return None
        except PayloadRefused as refusal:
            log.warning("%s skipped: %s", described(batches), refusal, extra=event("batch_skipped"))
            session.abandon(grant, "nonfinite")
            return False
        self.work.keep()
        fates = session.dispositions(grant)
        cancelled = any(fate.ticket == grant.ticket and fate.cancelled for fate in fates)
        self.committed(result.loss, fates)
        if evaluations is not None:
            if not cancelled:
                evaluations.committed()
            if session.stop is None:
                evaluations.measure()
        return None if cancelled else True

    def _payload(self, batches: TicketBatches, grant: Grant) -> Result:
        """What to push under `grant`. Raises Voided, and PayloadRefused when it is not finite."""
        work = self.work
        work.renew(self.session.membership)
        if not work.can_use(batches):
            raise Voided(f"{described(batches)} used up by a ticket of another incarnation")
        with self._weights_of(grant) as weights:
            if self.evaluations is not None:
                self.evaluations.look(grant, weights)
            gradients = Gradients(self.session, self.trainer, self.pause, batches, grant)
            result = work.payload(weights, gradients, batches)
        if not work.steps_taken:
            self.pause()
        if not math.isfinite(result.norm):
            raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
        return result

    def _weights_of(self, grant: Grant) -> AbstractContextManager[list[Any]]:
        """The granted version: where it lies while it is read once, a copy for many steps.

        As it travelled, for a trainer that takes it so, unless a local rule reckons with it.
        """
        session = self.session
        if self.work.steps == 1 or self.work.steps_taken:
            return session.view_flat(grant, narrow=self.trainer.narrow and session.local_rule == PLAIN)
        return nullcontext(session.pull_flat(grant))

    def _take_steps(self, batches: TicketBatches) -> bool:
        """The steps that come before the grant. False: a gradient is not finite."""
        try:
            taken = self.work.take_steps(Gradients(self.session, self.trainer, self.pause, batches), batches)
        except Voided:
            return True  # the job is over
        self.pause()
        if not taken.finite:
            log.warning(
                "%s skipped: the gradient's norm is %s (loss %s)",
                *(described(batches), taken.norm, taken.loss),
                extra=event("batch_skipped"),
            )
        return taken.finite


@dataclass(slots=True)
class Gradients:
    """The trainer's step, with the injected delay between two of them. During a ticket's last one the next is fetched.

    Raises Voided between two steps when the ticket was cancelled or the job is over.
    """

    session: Session
    trainer: Trainer
    pause: Callable[[], None]
    batches: TicketBatches
    grant: Grant | None = None
    taken: int = 0

    def __call__(self, weights: list[Floats], batch: Any) -> Result:
        if self.taken:
            self.pause()
            if self.session.stop is not None:
                raise Voided("the job is over")
            if self.grant is not None and self.session.cancelled(self.grant):
                raise Voided(f"ticket {self.grant.ticket} was cancelled after {self.taken} steps")
        self.taken += 1
        if self.grant is not None and self.batches.followed:
            self.session.prefetch(self.grant)
        return self.trainer.step(weights, batch)


def described(batches: TicketBatches) -> str:
    if batches.first == batches.last:
        return f"batch {batches.first} is"
    return f"batches {batches.first} to {batches.last} are"
