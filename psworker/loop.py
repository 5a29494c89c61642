"""A worker's training loop: for each ticket grant, pull, gradients, push, commit, until the job is over.

How many gradients come between pull and push, and what becomes of them, is up to the local rule (`psworker.local`):
usually one, pushed as it is. A pass through the data begins at the first batch that is not committed, and again there
when the servers went back to a checkpoint.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pswire.logs.events import event
from psworker.engine import Stop
from psworker.errors import Refused, RolledBack
from psworker.evaluating import Evaluations
from psworker.local import Trainer, by_ticket, evaluated
from psworker.session import Session
from psworker.ticket_loop import Pause, TicketLoop
from psworker.turn import FateCounts, Turns
from psworker.work import UnitSource, UnitTrainer

log = logging.getLogger("ps-worker")


@dataclass(slots=True)
class Outcome:
    """The work of one worker. `empty`: its part of the data had no batch at all."""

    steps: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stop: Stop | None = None
    empty: bool = False


Progress = Callable[[int, float, Mapping[str, int]], None]


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
    """Work through this worker's data, or through what the coordinator deals, then wait for the end of the job.

    Calls `progress(steps, loss, fates)` after every commit, with the number of contributions by fate, and `pause` after
    every gradient. `evaluations`: measured meanwhile; they may end the job. Raises SessionError, and whatever the
    trainer raises.
    """
    outcome, counts = Outcome(), FateCounts()
    outcome.fates = counts.counts
    session.goes_back()
    if evaluations is not None:
        evaluations.read = lambda keys: session.newest_rows(keys)
    while True:
        try:
            _pass(session, trainer, epochs, outcome, counts, progress, pause, evaluations)
            ends = evaluations.watched.ends if evaluations is not None else ""
            outcome.stop = session.stop or (session.done(ends) if ends else session.done())
            break
        except RolledBack as back:
            log.warning("%s", back, extra=event("rolled_back", batch=session.next_batch))
            if evaluations is not None:
                evaluations.rolled_back()
    if outcome.stop.evaluate:
        final = session.pull_final()
        outcome.metrics = evaluated(trainer, final, lambda keys: session.newest_rows(keys))
        if outcome.metrics:
            if evaluations is not None:
                evaluations.judge(outcome.stop.version, final, outcome.metrics)
            else:
                session.report(outcome.metrics)
    return outcome


def _pass(
    session: Session,
    trainer: Trainer,
    epochs: int,
    outcome: Outcome,
    counts: FateCounts,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> None:
    """One pass, from the first batch that is not committed. Raises RolledBack when that has become another batch."""
    work = session.local_work()
    turns = Turns(session, counts=counts, unit="batches" if work.steps == 1 else "tickets")

    def committed(loss: float) -> None:
        outcome.steps += 1
        progress(outcome.steps, loss, turns.fates)

    tickets = TicketLoop(session, trainer, work, turns, pause, committed, evaluations)
    for _ in _dealt(tickets) if session.work is not None else _own(tickets, epochs, outcome):
        if evaluations is not None and evaluations.watched.ends:
            break
    tickets.land()
    if outcome.empty:
        log.warning(
            "the data of worker %d of %d has no batch",
            *(session.worker_index, session.worker_count),
            extra=event("no_batches", index=session.worker_index),
        )


def _own(tickets: TicketLoop, epochs: int, outcome: Outcome) -> Iterable[None]:
    """Work through this worker's own data, ticket by ticket."""
    session, trainer = tickets.session, tickets.trainer
    batches = trainer.batches(
        session.worker_index, session.worker_count, session.seed, epochs, session.next_batch
    )
    outcome.empty = session.next_batch == 0
    extent = 0
    for ticket in by_ticket(batches, tickets.work.steps):
        outcome.empty = False
        # Not every trainer knows how much data it has, and some learn it on the way.
        if (total := getattr(trainer, "total_batches", 0)) != extent:
            session.tell_extent(epochs, total)
            extent = total
        if session.stop is not None:
            return
        tickets.step(ticket)
        yield


def _dealt(tickets: TicketLoop) -> Iterable[None]:
    """Work on the units that the coordinator deals with the grants, until the job is over."""
    session, trainer, work = tickets.session, tickets.trainer, tickets.work
    if work.steps_before_pull or work.overlap:
        raise Refused(
            f"the local rule {session.local_rule!r} takes steps before it has a ticket, and work units are dealt with "
            "the tickets: expected another policy, or a job without `work`"
        )
    if not isinstance(trainer, UnitTrainer):
        raise TypeError("the session deals work units: expected a trainer with `work` and `unit_batches`")
    assert session.work is not None
    opened = trainer.unit_batches(session.worker_index, session.seed)
    source = UnitSource(session.work, opened, work.steps, session.seed)
    while (turn := tickets.turns.next()) is not None:
        assert turn.grant.part is not None
        batches = source.of(turn.grant.part)
        if batches is None:
            session.abandon(turn.grant, "the unit has ended", unit_ends=True)
            yield
        else:
            tickets.attempt(batches, turn, source)
            yield
