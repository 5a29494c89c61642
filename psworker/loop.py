"""A worker's training loop: for each ticket grant, pull, gradients, push, commit, until the job is over.

How many gradients come between pull and push, and what becomes of them, is up to the local rule (`psworker.local`):
usually one, pushed as it is. Where the rule goes on while a contribution travels, a thread sends it (`psworker.ahead`).
A pass through the data begins at the first batch that is not committed, and again there when the servers went back to a
checkpoint.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pswire.logs.events import event
from psworker.ahead import Ahead
from psworker.data.payloads import payloads_of
from psworker.engine import Grant, Stop
from psworker.errors import Refused, RolledBack, Voided
from psworker.evaluating import Evaluations
from psworker.link import Link
from psworker.local import (
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
from psworker.local.inner import InnerSteps
from psworker.local.rule import Flats
from psworker.turn import FateCounts, Turn, Turns
from psworker.work import UnitSource, UnitTrainer

log = logging.getLogger("ps-worker")

Arrived = tuple[Turn | None, Flats | None]
Pause = Callable[[], None]
"""An injected delay, called after a gradient is computed and before it is pushed."""


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
        work = link.local_work()
        turns = Turns(link, counts=counts, unit="batches" if work.rule.steps == 1 else "tickets")
        tickets = TicketLoop(link, trainer, work, turns, outcome, progress, pause, evaluations)
        try:
            tickets.run(epochs)
            ends = evaluations.watched.ends if evaluations is not None else ""
            outcome.stop = link.stop or (link.done(ends) if ends else link.done())
            break
        except RolledBack as back:
            log.warning("%s", back, extra=event("rolled_back", batch=link.info.next_batch))
            if evaluations is not None:
                evaluations.rolled_back()
        finally:
            tickets.close()
    if outcome.stop.evaluate:
        final = link.pull_final()
        outcome.metrics = evaluated(trainer, final, lambda keys: link.newest_rows(keys))
        if outcome.metrics:
            if evaluations is not None:
                evaluations.judge(outcome.stop.version, final, outcome.metrics)
            else:
                link.report(outcome.metrics)
    return outcome


@dataclass(slots=True)
class TicketLoop:
    """Works on the tickets of one pass through the data; see `train`."""

    link: Link
    trainer: Trainer
    work: LocalWork
    turns: Turns
    outcome: Outcome
    progress: Progress
    pause: Pause
    evaluations: Evaluations | None
    # Under a rule with `overlap`: whether the contribution that travels was sent, then the next turn with its version;
    # and its loss.
    _ahead: Ahead | None = None
    _travelling: tuple["Future[bool]", "Future[Arrived | None]", float] | None = None
    _arrived: Arrived | None = None

    def run(self, epochs: int) -> None:
        """Go through the data from the first batch that is not committed. Raises RolledBack when that has become
        another batch."""
        for _ in self._own(epochs) if self.link.work is None else self._dealt():
            if self.evaluations is not None and self.evaluations.watched.ends:
                break
        self.land()
        if self.outcome.empty:
            info = self.link.info
            log.warning(
                "the data of worker %d of %d has no batch",
                *(info.rank, info.size),
                extra=event("no_batches", index=info.rank),
            )

    def _own(self, epochs: int) -> Iterable[None]:
        """Work through this worker's own data, ticket by ticket."""
        link, trainer, info = self.link, self.trainer, self.link.info
        batches = trainer.batches(info.rank, info.size, info.seed, epochs, info.next_batch)
        self.outcome.empty = info.next_batch == 0
        extent = 0
        for ticket in by_ticket(batches, self.work.rule.steps):
            self.outcome.empty = False
            # Not every trainer knows how much data it has, and some learn it on the way.
            if (total := getattr(trainer, "total_batches", 0)) != extent:
                link.tell_extent(epochs, total)
                extent = total
            if link.stop is not None:
                return
            self.step(ticket)
            yield

    def _dealt(self) -> Iterable[None]:
        """Work on the units that the coordinator deals with the grants, until the job is over."""
        link, trainer, work = self.link, self.trainer, self.work
        if work.rule.steps_before_pull or work.rule.overlap:
            raise Refused(
                f"the local rule {link.info.local_rule!r} takes steps before it has a ticket, and work units are dealt "
                "with the tickets: expected another policy, or a job without `work`"
            )
        if not isinstance(trainer, UnitTrainer):
            raise TypeError("the session deals work units: expected a trainer with `work` and `unit_batches`")
        assert link.work is not None
        opened = trainer.unit_batches(link.info.rank, link.info.seed)
        source = UnitSource(link.work, opened, work.rule.steps, link.info.seed)
        while (turn := self.turns.next()) is not None:
            assert turn.grant.part is not None
            batches = source.of(turn.grant.part)
            if batches is None:
                link.abandon(turn.grant, "the unit has ended", unit_ends=True)
            else:
                self.attempt(batches, turn, source)
            yield

    def step(self, batches: TicketBatches) -> None:
        """Contribute the batches of one ticket, in another turn after each cancel."""
        self.land(batches)
        if self.work.has_own_weights and not self._take_steps(batches):
            return
        while self.work.can_use(batches) and (turn := self._turn()) is not None:
            self.attempt(batches, turn)
            if not turn.void:
                return

    def land(self, batches: TicketBatches | None = None) -> None:
        """Wait for the contribution that travels, if one does, after the first steps of the next `batches`."""
        travelling, self._travelling = self._travelling, None
        if travelling is None:
            return
        sent, arrived, loss = travelling
        taken = None if batches is None else self._go_on(batches)
        if sent.result():
            arrived.exception()  # waits: the link belongs to the thread until then
            self._kept(loss, taken)
            self._arrived = arrived.result()

    def close(self) -> None:
        """End the thread of a rule with `overlap`."""
        if self._ahead is not None:
            self._ahead.close()

    def attempt(self, batches: TicketBatches, turn: Turn, source: UnitSource | None = None) -> None:
        """Contribute the batches in one turn, unless it becomes void.

        `source`: where dealt batches come from. The coordinator, not the loop, then knows whether more follow.
        """
        evaluations, sent_now = self.evaluations, False
        with turn:
            result = self._payload(batches, turn)
            pending = evaluations is not None and evaluations.pending
            more = batches.more and not self.work.rule.steps_before_pull
            more_rows = (
                {} if not tables_of(self.trainer) else self._rows_of(result, batches if more else None)
            )
            # Steps before a pull, and an evaluation, come before the next ticket is asked for.
            ready = not pending and (source is not None or more)
            send = partial(
                turn.send,
                payloads_of(result),
                samples=result.samples,
                loss=result.loss,
                norm=result.norm,
                rate=None if evaluations is None else evaluations.learning_rate,
                batch=batches.last,
                named=_named(batches),
                ready=ready,
                unit_ends=source is not None and source.ends(),
                **more_rows,
            )
            if self.work.rule.overlap and ready and math.isfinite(result.norm):
                self._ahead = self._ahead or Ahead()
                sent = self._ahead.submit(send)
                arrived = self._ahead.submit(lambda: self._next() if sent.result() else None)
                self._travelling = sent, arrived, result.loss
            else:
                sent_now = send()
        if sent_now:
            self._kept(result.loss)

    def _kept(self, loss: float, taken: InnerSteps | None = None) -> None:
        """Take note of a committed contribution; `taken`: as of `LocalWork.keep`."""
        self.work.keep(taken)
        self.outcome.steps += 1
        self.progress(self.outcome.steps, loss, self.turns.fates)
        if self.evaluations is not None and self.link.stop is None:
            self.evaluations.measure()

    def _turn(self) -> Turn | None:
        return self.turns.next() if self._arrived is None else self._arrived[0]

    def _next(self) -> Arrived:
        """Get the next turn, and its version unless the turn is void by then."""
        turn = self.turns.next()
        try:
            return turn, None if turn is None else self.link.pull_flat(turn.grant)
        except Voided:
            return turn, None  # pulled again, which says why

    def _rows_of(self, result: Any, batches: TicketBatches | None) -> dict[str, Any]:
        """Return the gradients of rows to push, and the keys of the rows that the next batch needs, if it is known."""
        assert isinstance(self.trainer, RowTrainer)
        following = None if batches is None else batches.following
        return {
            "rows": result.rows,
            "ahead": {} if following is None else self.trainer.keys(following),
        }

    def _payload(self, batches: TicketBatches, turn: Turn) -> Result:
        """Pull, and compute what to push. Raises Voided."""
        work, (_, here), self._arrived = self.work, self._arrived or (None, None), None
        work.renew(self.link.info.membership)
        if not work.can_use(batches):
            raise Voided(f"{_named(batches)} used up by a ticket of another incarnation")
        if tables_of(self.trainer):
            (batch,) = batches
            assert isinstance(self.trainer, RowTrainer)
            self.link.want_rows(self.trainer.keys(batch))
        with self._weights(turn.grant, here) as weights:
            if self.evaluations is not None:
                self.evaluations.take(turn.grant, weights)
            gradients = Gradients(self.link, self.trainer, self.pause, batches, turn.grant)
            result = work.payload(weights, gradients, batches, turn.grant.version)
        if gradients.taken:
            self.pause()
        return result

    def _weights(self, grant: Grant, here: Flats | None) -> AbstractContextManager[list[Any]]:
        """Hold the granted version, which is `here` or is pulled: in place if it is read once, a copy for several
        steps.

        In the wire dtype for a trainer that accepts it, unless a local rule computes with it.
        """
        link = self.link
        if self.work.rule.steps == 1 or self.work.steps_taken:
            return link.view_flat(grant, narrow=self.trainer.narrow and link.info.local_rule == PLAIN)
        return nullcontext(link.pull_flat(grant) if here is None else here)

    def _go_on(self, batches: TicketBatches) -> InnerSteps | None:
        """Take the steps of a ticket that need no version. None: the job is over."""
        try:
            taken = self.work.go_on(Gradients(self.link, self.trainer, self.pause, batches), batches)
        except Voided:
            return None
        self.pause()
        return taken

    def _take_steps(self, batches: TicketBatches) -> bool:
        """Take the steps that come before the grant. False: a gradient is not finite."""
        try:
            taken = self.work.take_steps(Gradients(self.link, self.trainer, self.pause, batches), batches)
        except Voided:
            return True  # the job is over
        self.pause()
        if not taken.finite:
            self.turns.skip(_named(batches), f"the gradient's norm is {taken.norm} (loss {taken.loss})")
        return taken.finite


@dataclass(slots=True)
class Gradients:
    """The trainer's step, with the injected delay between two steps; fetches the next version during the last one.

    Raises Voided between two steps when the ticket was cancelled or the job is over.
    """

    link: Link
    trainer: Trainer
    pause: Pause
    batches: TicketBatches
    grant: Grant | None = None
    taken: int = 0

    def __call__(self, weights: Flats, batch: Any) -> Result:
        if self.taken:
            self.pause()
            if self.link.stop is not None:
                raise Voided("the job is over")
            if self.grant is not None and self.link.cancelled(self.grant):
                raise Voided(f"ticket {self.grant.ticket} was cancelled after {self.taken} steps")
        self.taken += 1
        if self.grant is not None and self.batches.followed:
            self._fetch_ahead(self.grant)
        return gradient_of(self.trainer, self._rows)(weights, batch)

    def _fetch_ahead(self, grant: Grant) -> None:
        """With prefetch, let the next batch's version and rows be fetched meanwhile."""
        link, trainer, following = self.link, self.trainer, self.batches.following
        if not link.prefetches:
            return
        if not tables_of(trainer) or following is None:
            link.prefetch(grant)
            return
        assert isinstance(trainer, RowTrainer)
        link.prefetch(grant, trainer.keys(following))

    def _rows(self, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        # Tables are refused under rules whose steps come before the grant.
        assert self.grant is not None
        return self.link.pull_rows(self.grant, keys)


def _named(batches: TicketBatches) -> str:
    if batches.first == batches.last:
        return f"batch {batches.first} is"
    return f"batches {batches.first} to {batches.last} are"
