"""The algorithm of a worker, readable from top to bottom: grant, pull, gradients, push, commit.

How many gradients there are between pull and push, and what is made of them,
is decided by the local rule (`psworker.local`): usually it is one, pushed as it is.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from psworker.data.payloads import payloads_of
from psworker.engine import Disposition, Grant, Stop
from psworker.errors import PayloadRefused, Refused, RolledBack, SessionError, Voided
from psworker.evaluating import Evaluations
from psworker.local import NONFINITE_LIMIT, PLAIN, LocalWork, Result, TicketBatches, Trainer, by_ticket
from psworker.session import Session
from psworker.work.source import UnitSource, UnitTrainer

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]


class Diverged(SessionError):
    """Gradient after gradient is NaN or infinite."""


@dataclass(slots=True)
class Outcome:
    """What a worker did. `empty`: its part of the data had no batch at all."""

    steps: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stop: Stop | None = None
    empty: bool = False


Progress = Callable[[int, float, list[Disposition]], None]


# An injected delay: called when a gradient is computed, before it is pushed.
Pause = Callable[[], None]


def no_pause() -> None:
    pass


def train(
    session: Session,
    trainer: Trainer,
    epochs: int,
    progress: Progress,
    pause: Pause = no_pause,
    evaluations: Evaluations | None = None,
) -> Outcome:
    """Work through this worker's data, or through what it is dealt, then wait for the end of the job.

    `progress(steps, loss, dispositions)` is called after every commit, `pause`
    after every gradient. `evaluations`: what is measured meanwhile; it may end the job.
    Raises SessionError, and whatever the trainer raises.
    """
    outcome = Outcome()
    session.goes_back()
    while True:
        try:
            _work_through(session, trainer, epochs, outcome, progress, pause, evaluations)
            ends = evaluations.watched.ends if evaluations is not None else ""
            outcome.stop = session.stop or (session.done(ends) if ends else session.done())
            break
        except RolledBack as back:
            log.warning("%s", back, extra=event("rolled_back", batch=session.next_batch))
            if evaluations is not None:
                evaluations.went_back()
    if outcome.stop.evaluate:
        final = session.pull_final()
        outcome.metrics = trainer.evaluate(final)
        if outcome.metrics:
            if evaluations is not None:
                evaluations.judge(outcome.stop.version, final, outcome.metrics)
            else:
                session.report(outcome.metrics)
    return outcome


def _work_through(
    session: Session,
    trainer: Trainer,
    epochs: int,
    outcome: Outcome,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> None:
    """The worker's data, from the first batch that is not committed. Raises RolledBack when that is another one now."""
    work = session.local_work()
    tickets = dealt_tickets if session.work is not None else own_tickets
    bad = 0
    for committed in tickets(session, trainer, work, epochs, outcome, progress, pause, evaluations):
        if evaluations is not None and evaluations.watched.ends:
            break
        bad = 0 if committed else bad + 1
        if bad >= NONFINITE_LIMIT:
            raise Diverged(
                f"{bad} {'batches' if work.steps == 1 else 'tickets'} in a row gave no finite gradient: lower the "
                "learning rate, or look for a division by zero or log(0) in the loss"
            )
    if outcome.empty:
        log.warning(
            "the data of worker %d of %d has no batch",
            *(session.worker_index, session.worker_count),
            extra=event("no_batches", index=session.worker_index),
        )


def own_tickets(
    session: Session,
    trainer: Trainer,
    work: LocalWork,
    epochs: int,
    outcome: Outcome,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> Iterator[bool]:
    """Ticket after ticket of this worker's own data; whether it was committed."""
    batches = trainer.batches(
        session.worker_index, session.worker_count, session.seed, epochs, session.next_batch
    )
    outcome.empty = session.next_batch == 0
    told = 0
    for ticket in by_ticket(batches, work.steps):
        outcome.empty = False
        # Not every trainer knows how much data it has, and some learn it on the way.
        if (total := getattr(trainer, "total_batches", 0)) != told:
            session.tell_extent(epochs, total)
            told = total
        if session.stop is not None:
            return
        yield step(session, trainer, work, ticket, outcome, progress, pause, evaluations)


def dealt_tickets(
    session: Session,
    trainer: Trainer,
    work: LocalWork,
    epochs: int,
    outcome: Outcome,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> Iterator[bool]:
    """As `own_tickets`, of the work units that the coordinator deals with the grants, until the job is over."""
    if work.steps_before_pull:
        raise Refused(
            f"the local rule {session.local_rule!r} takes its steps before it asks for a ticket, and work units are "
            "dealt with the tickets: expected another policy, or a job without `work`"
        )
    if not isinstance(trainer, UnitTrainer):
        raise TypeError("the session deals work units: expected a trainer with `work` and `unit_batches`")
    assert session.work is not None
    opened = trainer.unit_batches(session.worker_index, session.seed)
    source = UnitSource(session.work, opened, work.steps, session.seed)
    while (grant := session.ready()) is not None:
        assert grant.part is not None
        batches = source.of(grant.part)
        if batches is None:
            session.abandon(grant, "the unit has ended", unit_ends=True)
            yield True
        else:
            done = attempt(
                session, trainer, work, batches, grant, outcome, progress, pause, evaluations, source
            )
            yield done is not False


def step(
    session: Session,
    trainer: Trainer,
    work: LocalWork,
    batches: TicketBatches,
    outcome: Outcome,
    progress: Progress,
    pause: Pause = no_pause,
    evaluations: Evaluations | None = None,
) -> bool:
    """The batches of one ticket, with a fresh grant whenever it is cancelled. False: a gradient is not finite."""
    if work.has_own_weights and not take_steps(session, trainer, work, batches, pause):
        return False
    while work.can_use(batches) and (grant := session.ready()) is not None:
        committed = attempt(session, trainer, work, batches, grant, outcome, progress, pause, evaluations)
        if committed is not None:
            return committed
    return True


def attempt(
    session: Session,
    trainer: Trainer,
    work: LocalWork,
    batches: TicketBatches,
    grant: Grant,
    outcome: Outcome,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None = None,
    source: UnitSource | None = None,
) -> bool | None:
    """The batches under one grant. None: the ticket was cancelled. False: a gradient is not finite.

    `source`: where dealt batches come from; the coordinator knows then whether there are more.
    """
    try:
        result = payload(session, trainer, work, batches, grant, pause, evaluations)
        pending = evaluations is not None and evaluations.pending
        session.contribute(
            grant,
            payloads_of(result),
            samples=result.samples,
            loss=result.loss,
            batch=batches.last,
            # Steps that come before a pull come before asking for it, too, and so does an evaluation.
            ready=not pending and (source is not None or (batches.more and not work.steps_before_pull)),
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
    work.keep()
    outcome.steps += 1
    fates = session.dispositions()
    for disposition in fates:
        outcome.fates[disposition.fate] = outcome.fates.get(disposition.fate, 0) + 1
    progress(outcome.steps, result.loss, fates)
    if evaluations is not None:
        evaluations.committed()
        if session.stop is None:
            evaluations.measure()
    return True


def payload(
    session: Session,
    trainer: Trainer,
    work: LocalWork,
    batches: TicketBatches,
    grant: Grant,
    pause: Pause,
    evaluations: Evaluations | None = None,
) -> Result:
    """What to push under `grant`. Raises Voided, and PayloadRefused when it is not finite."""
    work.renew(session.membership)
    if not work.can_use(batches):
        raise Voided(f"{described(batches)} used up by a ticket of another incarnation")
    with weights_of(session, trainer, grant, work) as weights:
        if evaluations is not None:
            evaluations.look(grant, weights)
        result = work.payload(weights, Gradients(session, trainer, pause, batches, grant), batches)
    if not work.steps_taken:
        pause()
    if not math.isfinite(result.norm):
        raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
    return result


def weights_of(
    session: Session, trainer: Trainer, grant: Grant, work: LocalWork
) -> AbstractContextManager[list[Any]]:
    """The granted version: where it lies while it is read once, a copy for many steps.

    As it travelled, for a trainer that takes it so, unless a local rule reckons with it.
    """
    if work.steps == 1 or work.steps_taken:
        return session.view_flat(grant, narrow=trainer.narrow and session.local_rule == PLAIN)
    return nullcontext(session.pull_flat(grant))


def take_steps(
    session: Session, trainer: Trainer, work: LocalWork, batches: TicketBatches, pause: Pause
) -> bool:
    """The steps that come before the grant. False: a gradient is not finite."""
    try:
        taken = work.take_steps(Gradients(session, trainer, pause, batches), batches)
    except Voided:
        return True  # the job is over
    pause()
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
    pause: Pause
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
