"""A worker's training loop: for each ticket grant, pull, gradients, push, commit, until the job is over.

How many gradients come between pull and push, and what becomes of them, is up to the local rule (`psworker.local`):
usually one, pushed as it is. A pass through the data begins at the first batch that is not committed, and again there
when the servers went back to a checkpoint.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pswire.logs.events import event
from psworker.data.payloads import payloads_of
from psworker.engine import Disposition, Grant, Stop
from psworker.errors import Diverged, PayloadRefused, Refused, RolledBack, Voided
from psworker.evaluating import Evaluations
from psworker.local import (
    NONFINITE_LIMIT,
    PLAIN,
    LocalWork,
    Result,
    RowTrainer,
    TicketBatches,
    Trainer,
    by_ticket,
    evaluated,
    gradient_of,
    tables_of,
)
from psworker.local.rule import Flats
from psworker.session import Session
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


Progress = Callable[[int, float, list[Disposition]], None]

# An injected delay, called after a gradient is computed and before it is pushed.
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
    """Work through this worker's data, or through what the coordinator deals, then wait for the end of the job.

    Calls `progress(steps, loss, dispositions)` after every commit and `pause` after every gradient. `evaluations`:
    measured meanwhile; they may end the job. Raises SessionError, and whatever the trainer raises.
    """
    outcome = Outcome()
    session.goes_back()
    if evaluations is not None:
        evaluations.read = lambda keys: session.newest_rows(keys)
    while True:
        try:
            _pass(session, trainer, epochs, outcome, progress, pause, evaluations)
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
    progress: Progress,
    pause: Pause,
    evaluations: Evaluations | None,
) -> None:
    """One pass, from the first batch that is not committed. Raises RolledBack when that has become another batch."""

    def committed(loss: float, dispositions: list[Disposition]) -> None:
        outcome.steps += 1
        for disposition in dispositions:
            outcome.fates[disposition.fate] = outcome.fates.get(disposition.fate, 0) + 1
        progress(outcome.steps, loss, dispositions)

    work, nonfinite = session.local_work(), 0
    tickets = TicketLoop(session, trainer, work, pause, committed, evaluations)
    for finite in _dealt(tickets) if session.work is not None else _own(tickets, epochs, outcome):
        if evaluations is not None and evaluations.watched.ends:
            break
        nonfinite = 0 if finite else nonfinite + 1
        if nonfinite >= NONFINITE_LIMIT:
            raise Diverged(
                f"{nonfinite} {'batches' if work.steps == 1 else 'tickets'} in a row gave no finite gradient: lower "
                "the learning rate, or look for a division by zero or log(0) in the loss"
            )
    if outcome.empty:
        log.warning(
            "the data of worker %d of %d has no batch",
            *(session.worker_index, session.worker_count),
            extra=event("no_batches", index=session.worker_index),
        )


def _own(tickets: "TicketLoop", epochs: int, outcome: Outcome) -> Iterator[bool]:
    """Work through this worker's own data, ticket by ticket; yield False for a gradient that is not finite."""
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
        yield tickets.step(ticket)


def _dealt(tickets: "TicketLoop") -> Iterator[bool]:
    """Work on the units that the coordinator deals with the grants, until the job is over."""
    session, trainer, work = tickets.session, tickets.trainer, tickets.work
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
            yield tickets.attempt(batches, grant, source) is not False


@dataclass(frozen=True, slots=True)
class TicketLoop:
    """Works on the tickets of one pass. `committed(loss, dispositions)` is called after every commit."""

    session: Session
    trainer: Trainer
    work: LocalWork
    pause: Pause
    committed: Callable[[float, list[Disposition]], None]
    evaluations: Evaluations | None = None

    def step(self, batches: TicketBatches) -> bool:
        """Contribute the batches of one ticket, under another grant after each cancel. False: not finite."""
        if self.work.has_own_weights and not self._take_steps(batches):
            return False
        while self.work.can_use(batches) and (grant := self.session.ready()) is not None:
            committed = self.attempt(batches, grant)
            if committed is not None:
                return committed
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
            session.contribute(
                grant,
                payloads_of(result),
                samples=result.samples,
                loss=result.loss,
                batch=batches.last,
                # Steps before a pull, and an evaluation, come before the next ticket is asked for.
                ready=not pending and (source is not None or more),
                learning_rate=None if evaluations is None else evaluations.learning_rate,
                unit_ends=source is not None and source.ends(),
                **more_rows,
            )
        except Voided as reason:
            log.info("%s", reason, extra=event("contribution_void"))
            session.abandon(grant, "cancelled")
            return None
        except PayloadRefused as refusal:
            log.warning("%s skipped: %s", _named(batches), refusal, extra=event("batch_skipped"))
            session.abandon(grant, "nonfinite")
            return False
        self.work.keep()
        dispositions = session.dispositions(grant)
        cancelled = any(each.ticket == grant.ticket and each.cancelled for each in dispositions)
        self.committed(result.loss, dispositions)
        if evaluations is not None:
            if not cancelled:
                evaluations.committed()
            if session.stop is None:
                evaluations.measure()
        return None if cancelled else True

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
        work = self.work
        work.renew(self.session.membership)
        if not work.can_use(batches):
            raise Voided(f"{_named(batches)} used up by a ticket of another incarnation")
        if tables_of(self.trainer):
            (batch,) = batches
            assert isinstance(self.trainer, RowTrainer)
            self.session.want_rows(self.trainer.keys(batch))
        with self._weights(grant) as weights:
            if self.evaluations is not None:
                self.evaluations.take(grant, weights)
            gradients = Gradients(self.session, self.trainer, self.pause, batches, grant)
            result = work.payload(weights, gradients, batches, grant.version)
        if not work.steps_taken:
            self.pause()
        if not math.isfinite(result.norm):
            raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
        return result

    def _weights(self, grant: Grant) -> AbstractContextManager[list[Any]]:
        """Hold the granted version: in place if it is read once, a copy for several steps.

        In the wire dtype for a trainer that accepts it, unless a local rule computes with it.
        """
        session = self.session
        if self.work.steps == 1 or self.work.steps_taken:
            return session.view_flat(grant, narrow=self.trainer.narrow and session.local_rule == PLAIN)
        return nullcontext(session.pull_flat(grant))

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
        """Let what the next batch needs be fetched meanwhile: its version, or at least rows that may not change."""
        session, trainer, following = self.session, self.trainer, self.batches.following
        if not tables_of(trainer) or following is None:
            session.prefetch(grant)
            return
        assert isinstance(trainer, RowTrainer)
        if session.prefetches:
            session.prefetch(grant, trainer.keys(following))
        else:
            session.look_ahead_by_keys(grant, lambda: trainer.keys(following))

    def _rows(self, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        # Tables are refused under rules whose steps come before the grant.
        assert self.grant is not None
        return self.session.pull_rows(self.grant, keys)


def _named(batches: TicketBatches) -> str:
    if batches.first == batches.last:
        return f"batch {batches.first} is"
    return f"batches {batches.first} to {batches.last} are"
