"""A worker's session with the parameter servers: its turns, for any training loop, and the end of the job.

Only numpy is needed. docs/guides/loop.md shows the loop.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, count, islice, repeat
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from pswire.logs.events import event
from psworker import loop
from psworker.control.joining import JobInfo
from psworker.data.payloads import Floats
from psworker.engine import Stop
from psworker.errors import RolledBack
from psworker.link import Link
from psworker.local import ReadAhead, Trainer
from psworker.loop import Outcome, Progress
from psworker.turn import Turn, Turns
from psworker.work import UnitSource

log = logging.getLogger("ps-worker")

IdsOf = Callable[[Any], Mapping[str, ArrayLike]]
"""Returns, for a batch, the ids to read by table."""


class LoopTurn:
    """One turn of a loop: compute gradients of `batch` at `weights`, and `send` them. Made by `Session.turns`.

    `weights`: float32 arrays by variable name, of version `version`. `rows`: float32 by table, of the shape of the ids
    that were asked for, with a last axis of dim. `batch`: what the data has for this turn.
    """

    def __init__(
        self,
        link: Link,
        turn: Turn,
        batch: Any,
        ids: Mapping[str, ArrayLike],
        ends: Callable[[], bool],
        number: int | None,
        *,
        more: bool,
    ) -> None:
        self._link, self._turn, self._ids = link, turn, ids
        self._ends, self._number, self._more = ends, number, more
        self._open = True
        self.batch, self.version = batch, turn.grant.version
        self.rows: dict[str, Floats] = {}
        self.weights: dict[str, Floats] = {}
        if ids:
            self.weights, self.rows = link.pull(turn.grant, ids)
        else:
            self.weights = link.pull(turn.grant)

    def send(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        samples: int,
        loss: float = math.nan,
        learning_rate: float | None = None,
        rows: Mapping[str, ArrayLike] | None = None,
    ) -> bool:
        """Contribute gradients by variable name (of state: changes); absent ones are zero. It counts exactly once.

        `samples`: how many they were averaged over, from 1. `loss`: their mean loss, for the log. `learning_rate`: the
        optimizer's from now on, for all workers. `rows`: gradients of `rows`, by table, of the same shapes; those of
        the same id are added in their order.

        Returns False if it does not count: the turn was cancelled, and its batch comes again, or a number is not
        finite. Raises ValueError for names, shapes and numbers that make no sense, RuntimeError for a turn that has
        ended, Diverged for the tenth in a row that is not finite, Refused, Unreachable.
        """
        if not self._open:
            raise RuntimeError(
                "send: this turn has ended: expected one send in each turn, before the loop takes the next"
            )
        if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1:
            raise ValueError(
                f"samples: expected the number of samples of the gradients, from 1, got {samples!r}"
            )
        flats = self._link.plan.scatter_by_name(gradients)
        summed = self._link.summed(self._with_ids(rows or {}))
        send = partial(
            self._turn.send,
            flats,
            samples=int(samples),
            loss=float(loss),
            rate=learning_rate,
            batch=self._number,
            ready=self._more,
            unit_ends=self._ends(),
            rows=summed,
        )
        # An error so far leaves the turn open.
        self._open = False
        return send()

    def _with_ids(self, rows: Mapping[str, ArrayLike]) -> dict[str, tuple[ArrayLike, ArrayLike]]:
        found: dict[str, tuple[ArrayLike, ArrayLike]] = {}
        for name, values in rows.items():
            if name not in self.rows:
                asked = ", ".join(self.rows) or "none"
                raise ValueError(
                    f"rows: expected gradients of the rows that this turn has read ({asked}), got some of {name!r}: "
                    "name its ids in turns(rows=...)"
                )
            if np.shape(values) != self.rows[name].shape:
                raise ValueError(
                    f"rows of {name!r}: expected the shape {self.rows[name].shape}, got {np.shape(values)}"
                )
            found[name] = self._ids[name], values
        return found

    def give_back(self, reason: str) -> bool:
        """End the turn without a contribution, if it is open. True: its batch is to come again, because the turn was
        cancelled."""
        if self._open:
            self._open = False
            self._link.abandon(self._turn.grant, reason)
        return self._turn.void


class Session:
    """A worker's place in a job, as `psworker.connect` opens it. Close it, or use `with`. Not thread-safe."""

    def __init__(self, link: Link, turns: Turns | None = None) -> None:
        """Hold `link`. `turns`: those of a loop that runs on it already."""
        self._link, self._turns = link, turns or Turns(link)
        self._turn: LoopTurn | None = None
        self._taken = turns is not None

    @property
    def rank(self) -> int:
        """This worker's number, and part of the data: 0 to `size` - 1, higher for workers that join later."""
        return self._link.info.rank

    @property
    def size(self) -> int:
        """The number of workers that the job was started for."""
        return self._link.info.size

    @property
    def info(self) -> JobInfo:
        """The job and this worker's place in it."""
        return self._link.info

    @property
    def over(self) -> Stop | None:
        """How the job ended, with `reason`, `version` and `success`; None while it goes on."""
        return self._link.stop

    @property
    def fates(self) -> dict[str, int]:
        """How many contributions of this worker had each fate ("applied", "dropped"), as far as it is known."""
        return dict(self._turns.fates)

    # Training

    def turns(self, data: Any = None, *, epochs: int = 1, rows: IdsOf | None = None) -> Iterator[LoopTurn]:
        """Yield a turn for each batch that this worker has not committed, and end when the job is over.

        `data`: an iterable of batches, which is gone through `epochs` times; where the coordinator deals the data
        (`connect(work=...)`), a function from a `Unit` to an iterable of its batches, by default their numbers; None:
        turns without a batch, for as long as the job goes on. `rows`: returns, for a batch, the ids to read by table.

        A batch comes again if its turn was cancelled. Where `data` can be gone through again (a list, not a
        generator) batches come again, too, if the servers lost them. A turn in which nothing is sent gives its batch
        up; where the coordinator deals the data, the batch comes a few times more. After the last batch this waits for
        the other workers. One loop for each session: raises RuntimeError for a second one, ValueError for data that
        does not fit, Diverged, Refused, Unreachable.
        """
        work = self._link.work
        self._require_first("turns")
        if epochs != 1 and (work is not None or data is None or isinstance(data, Iterator)):
            raise ValueError(
                f"epochs={epochs}: expected data that can be gone through again, such as a list of batches; where the "
                "coordinator deals the data, connect(epochs=...)"
            )
        if work is None and data is not None and not isinstance(data, Iterable):
            raise ValueError(
                f"turns: expected an iterable of batches, got {data!r}: connect(work=...) takes a function of a unit"
            )
        if work is not None and data is not None and not callable(data):
            raise ValueError(
                "turns: the coordinator deals the data: expected a function from a unit to its batches"
            )
        if work is not None and data is None and not work.samples:
            raise ValueError(
                "turns: expected a function from a unit to its batches: these units are not of samples"
            )
        self._taken = True
        if work is not None:
            return self._dealt(data or (lambda unit: unit.batches(np.arange(work.samples))), rows)
        if data is not None and not isinstance(data, Iterator):
            self._link.goes_back()
        return self._own(data, epochs, rows)

    def _require_first(self, call: str) -> None:
        """Raise RuntimeError if this session has had its loop."""
        if self._taken:
            raise RuntimeError(
                f"{call}: this session has had its loop: expected one, as in turns(data, epochs=3), or another session"
            )

    def _own(self, data: Any, epochs: int, rows: IdsOf | None) -> Generator[LoopTurn]:
        link = self._link
        while True:
            try:
                yield from self._numbered(data, epochs, rows)
                if link.stop is None:
                    link.done()
                return
            except RolledBack as back:
                log.warning("%s", back, extra=event("rolled_back", batch=link.info.next_batch))

    def _numbered(self, data: Any, epochs: int, rows: IdsOf | None) -> Generator[LoopTurn]:
        """Yield the turns of this worker's own batches, from the first that is not committed."""
        link, first = self._link, self._link.info.next_batch
        # Not every object that has __len__ has a length.
        if extent := operator.length_hint(data):
            link.tell_extent(epochs, epochs * extent)
        batches = repeat(None) if data is None else chain.from_iterable(repeat(data, epochs))
        numbered = zip(count(first), batches if data is None else islice(batches, first, None), strict=False)
        source = ReadAhead(numbered)
        while source.following is not None:
            number, batch = source.take()
            again = True
            while again:
                if (ticket := self._turns.next()) is None:
                    return
                more = source.following is not None
                turn = self._opened(ticket, batch, rows, lambda: False, number, more=more)
                if turn is not None:
                    yield turn
                    again = self._give_back("skipped")

    def _dealt(self, data: Any, rows: IdsOf | None) -> Generator[LoopTurn]:
        link = self._link
        assert link.work is not None
        source = UnitSource(link.work, data, 1, link.info.seed)
        while (ticket := self._turns.next()) is not None:
            assert ticket.grant.part is not None
            batches = source.of(ticket.grant.part)
            if batches is None:
                link.abandon(ticket.grant, "the unit has ended", unit_ends=True)
                continue
            (batch,) = batches
            turn = self._opened(ticket, batch, rows, source.ends, None, more=True)
            if turn is not None:
                yield turn
                self._give_back("skipped")

    def _opened(
        self,
        ticket: Turn,
        batch: Any,
        rows: IdsOf | None,
        ends: Callable[[], bool],
        number: int | None,
        *,
        more: bool,
    ) -> LoopTurn | None:
        """Pull the version of a ticket. None: it was cancelled."""
        with ticket:
            ids = {} if rows is None else rows(batch)
            self._turn = LoopTurn(self._link, ticket, batch, ids, ends, number, more=more)
            if more and not ids:
                self._link.prefetch(ticket.grant)
            return self._turn
        return None

    def _give_back(self, reason: str) -> bool:
        turn, self._turn = self._turn, None
        return turn is not None and turn.give_back(reason)

    # The end

    def done(self) -> Stop:
        """Say that there is no more data here, and wait until the job is over. `turns` does so behind its last
        batch."""
        return self._end("")

    def stop(self, reason: str) -> Stop:
        """End the job for all workers, as a success, with its present version. Return how it ended.

        Under a policy that tolerates bad workers, more of them must ask than it tolerates. Raises ValueError without a
        reason.
        """
        if not reason:
            raise ValueError("stop: expected a reason, which the log and the other workers get")
        return self._end(reason)

    def _end(self, reason: str) -> Stop:
        self._give_back("the worker is done")
        while (stop := self._link.stop) is None:
            try:
                return self._link.done(reason)
            except RolledBack as back:
                log.warning("%s", back, extra=event("rolled_back", batch=self._link.info.next_batch))
        return stop

    def weights(self) -> dict[str, Floats]:
        """Return the job's last version, by variable name. Raises RuntimeError while the job goes on, JobStopped,
        Unreachable."""
        self._check_over("weights")
        return self._link.plan.gather_by_name(self._link.pull_final())

    def lookup(self, table: str, ids: ArrayLike) -> tuple[Floats, int]:
        """Return rows of a table, of the shape of `ids` and a last axis of dim, and the newest version, which has them.

        Makes no rows. Several servers may be at different versions; the oldest is returned. Raises ValueError for an
        unknown table, Refused, Unreachable.
        """
        return self._link.lookup(table, ids)

    def report(self, metrics: Mapping[str, float]) -> None:
        """Report metrics of the last version, for the run's summary. Raises RuntimeError while the job goes on."""
        self._check_over("report")
        self._link.report(metrics)

    def _check_over(self, call: str) -> None:
        if self._link.stop is None:
            raise RuntimeError(
                f"{call}: the job goes on: expected this after the loop, or after done() or stop()"
            )

    def close(self) -> None:
        """Leave the job. A turn that is open is given back, and what was sent stays. Safe to call twice."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.__exit__(kind, error, trace)


def train(
    session: Session,
    trainer: Trainer,
    epochs: int = 1,
    progress: Progress = lambda steps, loss, fates: None,
) -> Outcome:
    """Train with the gradients of `trainer` under any local rule, until the job is over, in place of `Session.turns`.

    Calls `progress(steps, loss, fates)` after every commit, with the number of contributions by fate. Raises
    SessionError, and whatever the trainer raises; RuntimeError if the session has had its loop.
    """
    session._require_first("train")
    session._taken = True
    return loop.train(session._link, trainer, epochs, progress)
