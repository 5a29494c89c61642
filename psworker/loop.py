"""A worker's way through its data, ticket by ticket (`psworker.ticket`), until the job is over.

A pass begins at the first batch that is not committed, and again where servers have gone back to a checkpoint.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pswire.logs.events import event
from psworker.engine import Disposition, Stop
from psworker.errors import Refused, RolledBack, SessionError
from psworker.evaluating import Evaluations
from psworker.local import NONFINITE_LIMIT, Trainer, by_ticket
from psworker.session import Session
from psworker.ticket import TicketLoop
from psworker.work.source import UnitSource, UnitTrainer

log = logging.getLogger("ps-worker")


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

    def committed(loss: float, fates: list[Disposition]) -> None:
        outcome.steps += 1
        for disposition in fates:
            outcome.fates[disposition.fate] = outcome.fates.get(disposition.fate, 0) + 1
        progress(outcome.steps, loss, fates)

    work, bad = session.local_work(), 0
    steps = TicketLoop(session, trainer, work, pause, committed, evaluations)
    for made in _dealt(steps) if session.work is not None else _own(steps, epochs, outcome):
        if evaluations is not None and evaluations.watched.ends:
            break
        bad = 0 if made else bad + 1
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


def _own(steps: TicketLoop, epochs: int, outcome: Outcome) -> Iterator[bool]:
    """Ticket after ticket of this worker's own data; False: a gradient was not finite."""
    session, trainer = steps.session, steps.trainer
    batches = trainer.batches(
        session.worker_index, session.worker_count, session.seed, epochs, session.next_batch
    )
    outcome.empty = session.next_batch == 0
    told = 0
    for ticket in by_ticket(batches, steps.work.steps):
        outcome.empty = False
        # Not every trainer knows how much data it has, and some learn it on the way.
        if (total := getattr(trainer, "total_batches", 0)) != told:
            session.tell_extent(epochs, total)
            told = total
        if session.stop is not None:
            return
        yield steps.step(ticket)


def _dealt(steps: TicketLoop) -> Iterator[bool]:
    """As `_own`, of the work units that the coordinator deals with the grants, until the job is over."""
    session, trainer, work = steps.session, steps.trainer, steps.work
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
            yield steps.attempt(batches, grant, source) is not False
