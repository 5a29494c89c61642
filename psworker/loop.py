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
from psworker.link import Link
from psworker.local import Trainer, by_ticket, evaluated
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
    link: Link,
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
    link.goes_back()
    if evaluations is not None:
        evaluations.read = lambda keys: link.newest_rows(keys)
    while True:
        try:
            _pass(link, trainer, epochs, outcome, counts, progress, pause, evaluations)
            ends = evaluations.watched.ends if evaluations is not None else ""
            outcome.stop = link.stop or (link.done(ends) if ends else link.done())
            break
        except RolledBack as back:
            log.warning("%s", back, extra=event("rolled_back", batch=link.info.next_batch))
            if evaluations is not None:
                evaluations.rolled_back()
    if outcome.stop.evaluate:
        final = link.pull_final()
        outcome.metrics = evaluated(trainer, final, lambda keys: link.newest_rows(keys))
        if outcome.metrics:
            if evaluations is not None:
                evaluations.judge(outcome.stop.version, final, outcome.metrics)
            else:
                link.report(outcome.metrics)
    return outcome


def _pass(
    link: Link,
    trainer: Trainer,
    epochs: int,
    outcome: Outcome,
    counts: FateCounts,
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> None:
    """One pass, from the first batch that is not committed. Raises RolledBack when that has become another batch."""
    work = link.local_work()
    turns = Turns(link, counts=counts, unit="batches" if work.steps == 1 else "tickets")

    def committed(loss: float) -> None:
        outcome.steps += 1
        progress(outcome.steps, loss, turns.fates)

    tickets = TicketLoop(link, trainer, work, turns, pause, committed, evaluations)
    try:
        for _ in _dealt(tickets) if link.work is not None else _own(tickets, epochs, outcome):
            if evaluations is not None and evaluations.watched.ends:
                break
        tickets.land()
    finally:
        tickets.close()
    if outcome.empty:
        log.warning(
            "the data of worker %d of %d has no batch",
            *(link.info.rank, link.info.size),
            extra=event("no_batches", index=link.info.rank),
        )


def _own(tickets: TicketLoop, epochs: int, outcome: Outcome) -> Iterable[None]:
    """Work through this worker's own data, ticket by ticket."""
    link, trainer = tickets.link, tickets.trainer
    batches = trainer.batches(link.info.rank, link.info.size, link.info.seed, epochs, link.info.next_batch)
    outcome.empty = link.info.next_batch == 0
    extent = 0
    for ticket in by_ticket(batches, tickets.work.steps):
        outcome.empty = False
        # Not every trainer knows how much data it has, and some learn it on the way.
        if (total := getattr(trainer, "total_batches", 0)) != extent:
            link.tell_extent(epochs, total)
            extent = total
        if link.stop is not None:
            return
        tickets.step(ticket)
        yield


def _dealt(tickets: TicketLoop) -> Iterable[None]:
    """Work on the units that the coordinator deals with the grants, until the job is over."""
    link, trainer, work = tickets.link, tickets.trainer, tickets.work
    if work.steps_before_pull or work.overlap:
        raise Refused(
            f"the local rule {link.info.local_rule!r} takes steps before it has a ticket, and work units are dealt "
            "with the tickets: expected another policy, or a job without `work`"
        )
    if not isinstance(trainer, UnitTrainer):
        raise TypeError("the session deals work units: expected a trainer with `work` and `unit_batches`")
    assert link.work is not None
    opened = trainer.unit_batches(link.info.rank, link.info.seed)
    source = UnitSource(link.work, opened, work.steps, link.info.seed)
    while (turn := tickets.turns.next()) is not None:
        assert turn.grant.part is not None
        batches = source.of(turn.grant.part)
        if batches is None:
            link.abandon(turn.grant, "the unit has ended", unit_ends=True)
            yield
        else:
            tickets.attempt(batches, turn, source)
            yield
