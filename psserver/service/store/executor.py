"""Executes a shard's orders, in log order, as they come: small ones at once, large passes beside the loop."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from psserver.service.guard.limits import LEASE_DIVISOR
from psserver.service.net.loop import LARGE_PASS, HeavyWork, Owner
from psserver.service.store.state import SharedShard
from psserver.shard import Apply, Install, NonfiniteError, Order, Release, Seal, Shard
from psserver.shard.updates import PendingUpdate
from pswire.decisions.orders import Save, Writing
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# Between looks at the words of workers that read in place, while an update waits for them; seconds.
LOOK_EVERY = 0.001


@dataclass(frozen=True, slots=True)
class Question:
    """A question behind the orders that were submitted before it: `look` at the shard, which changes nothing.

    `passed`: bytes that `look` passes over. `answer` is called in a later turn with what it found; never where the
    shard has failed. It stands under the number of the entry that comes next.
    """

    passed: Callable[[Shard], int]
    look: Callable[[Shard], Any]
    answer: Callable[[Any], object]


def trial_update(update: Apply, answer: Callable[[bool, float], None]) -> Question:
    """Would `update` be finite, and what is the largest magnitude of all that it would change?"""
    return Question(
        lambda shard: shard.passed(update),
        lambda shard: shard.try_update(update),
        lambda found: answer(*found),
    )


Submitted = Order | Question
# Orders that are no part of a usual step, behind which there is something to do.
_RARE = (Save, Release, Install)


class Executor:
    """Executes the orders of one shard. The loop's thread owns it.

    The first order of `_queue` is being executed while `_busy`: its arithmetic
    runs on the pool, or it is an update that waits for readers to leave a buffer.

    `lease`: seconds that an unread grant may hold up an update. `evicted`: called when versions were taken from
    those who read them.
    """

    def __init__(
        self,
        state: SharedShard,
        server: int,
        lease: float,
        owner: Owner,
        heavy: HeavyWork,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._server = server
        self._lease = lease
        self._owner = owner
        self._heavy = heavy
        self._evicted = evicted
        self._queue: deque[tuple[int, Submitted]] = deque()
        self._busy = False
        # Until when the first order waits for readers, and when it looks again.
        self._deadline: float | None = None
        self._look_again: asyncio.TimerHandle | None = None
        # Workers that left a granted version unread until it was taken back: how often, and since when.
        self._unread: dict[str, tuple[int, float]] = {}
        # Called with each order that has arithmetic, and its seconds, where they are measured.
        self.timed: Callable[[Order, float], None] | None = None
        # Called when the first weights are there.
        self.installed: Callable[[Shard], object] = lambda _: None
        # Called behind each order to save, with its index. Whether what the shard holds is being copied beside the
        # loop: until `copied` is called, nothing may write to it.
        self.save: Callable[[int, Shard], bool] = lambda _, __: False
        self._copying = False
        # An order waits for that.
        self._waits_for_copy = False

    def submit(self, orders: Iterable[tuple[int, Submitted]]) -> None:
        """Queue orders; they carry the indices that follow on what was submitted before."""
        self._queue.extend(orders)

    def execute_submitted(self) -> None:
        """Execute what can be executed now; what has to wait goes on by itself."""
        queue, state = self._queue, self._state
        while queue and not self._busy:
            index, order = queue[0]
            if state.failure is None:
                self._attempt(index, order, self._execute)
            else:
                queue.popleft()

    def _attempt(self, index: int, order: Submitted, step: Callable[[int, Submitted], bool]) -> None:
        """`step`, which says whether the order is executed. A failure is the shard's: nothing is executed any more."""
        try:
            executed = step(index, order)
        except Exception as error:
            self._failed(index, error)
            executed = True
        if executed:
            self._queue.popleft()

    def _failed(self, index: int, error: BaseException) -> None:
        fields = event("entry_failed", entry=index)
        if isinstance(error, NonfiniteError):
            log.error("%s", error, extra=fields)
            self._state.fail(str(error), diverged=True)
        else:
            log.error("entry %d of the decision log cannot be executed", index, exc_info=error, extra=fields)
            self._state.fail(f"server {self._server} cannot execute entry {index}: {error}")

    def _execute(self, index: int, order: Submitted) -> bool:
        state, shard, kind = self._state, self._state.shard, type(order)
        if isinstance(order, Question):
            return shard is None or self._look(shard, order)
        if shard is None:
            state.finish(index)
            return True
        if self._copying and isinstance(order, Writing | Save):
            self._busy = self._waits_for_copy = True
            return False
        if kind is Apply:
            if not self._has_buffer(shard, order):
                self._busy = True
                return False
        elif isinstance(order, Seal | Release):
            if kind is Seal and self._unread:
                # It has what it was granted, whatever way it read it.
                self.forgive(shard, order.ticket)
            state.settle_read(order.ticket)
            state.admission.changed(order.ticket)
        work = shard.prepare(order)
        if work is None:
            if kind in _RARE:
                self._executed_rare(index, order, shard)
            state.finish(index)
            return True
        if shard.passed(order) > LARGE_PASS:
            self._busy = True
            self.compute_beside(index, order, work)
            return False
        began = time.perf_counter()
        work.compute()
        self._computed(index, order, work, began)
        return True

    def _executed_rare(self, index: int, order: Order, shard: Shard) -> None:
        if isinstance(order, Save):
            self._copying = self.save(index, shard)
            return
        if isinstance(order, Install):
            self.installed(shard)
        self._state.admission.freed()

    def compute_beside(self, index: int, order: Order, work: PendingUpdate) -> None:
        """On another thread; the queue goes on when it is done."""
        began = time.perf_counter()

        def finish(index: int, _: Submitted) -> bool:
            self._computed(index, order, work, began)
            return True

        def ended(error: BaseException | None) -> None:
            self._busy = False
            if error is None:
                self._attempt(index, order, finish)
            else:
                self._failed(index, error)
                self._queue.popleft()
            self.execute_submitted()

        self._heavy.start(work.compute, ended)

    def _computed(self, index: int, order: Order, work: PendingUpdate, began: float) -> None:
        if self.timed is not None:
            self.timed(order, time.perf_counter() - began)
        work.finish()
        self._state.admission.freed()
        self._state.finish(index)

    def _look(self, shard: Shard, asked: Question) -> bool:
        """Nothing is executed meanwhile, so that nobody writes to what it reads."""
        found: list[Any] = []

        def ended(error: BaseException | None) -> None:
            self._busy = False
            if error is not None:
                self._failed(self._queue[0][0], error)
            else:
                self._owner.loop.call_soon(asked.answer, found[0])
            self._queue.popleft()
            self.execute_submitted()

        def pass_over() -> None:
            found.append(asked.look(shard))

        if asked.passed(shard) > LARGE_PASS:
            self._busy = True
            self._heavy.start(pass_over, ended)
            return False
        pass_over()
        self._owner.loop.call_soon(asked.answer, found[0])
        return True

    def copied(self) -> None:
        """What was to be saved is copied: its arrays may be written to."""
        self._copying = False
        if self._waits_for_copy:
            self._busy = self._waits_for_copy = False
            self.execute_submitted()

    # Waiting for readers

    def _has_buffer(self, shard: Shard, order: Order) -> bool:
        """An update waits for readers of old versions, but no longer than their lease."""
        if shard.blocked(order):
            self._state.end_reads(shard)
        if shard.blocked(order) and self._deadline is None:
            shard.arena.evict_unpinned()
            self._evicted()
            self._deadline = time.monotonic() + self._lease_of_holders(shard)
        if not shard.blocked(order):
            self._deadline = None
            return True
        assert self._deadline is not None
        left = self._deadline - time.monotonic()
        if left <= 0:
            self._take_back(shard)
            self._deadline = None
            return True
        # A worker that reads in place calls nobody when it has read.
        pause = min(left, LOOK_EVERY) if self._state.reading else left
        self._look_again = self._owner.loop.call_later(pause, self.look)
        return False

    def reading_began(self) -> None:
        """A worker reads in place from now on: what waits for readers looks at its words, rather than when the lease
        is over."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = self._owner.loop.call_later(LOOK_EVERY, self.look)

    def look(self) -> None:
        """A reader may have left a buffer: try again what waits for one."""
        if self._look_again is None:
            return
        self._look_again.cancel()
        self._look_again, self._busy = None, False
        if not self._state.closed:
            self.execute_submitted()

    def _take_back(self, shard: Shard) -> None:
        log.warning(
            "tickets %s did not read their version within %.1f s: taken back, they will be granted again",
            ", ".join(map(str, shard.arena.holders())) or "of slow readers",
            self._lease,
            extra=event("tickets_taken_back", seconds=self._lease),
        )
        now = time.monotonic()
        for ticket in shard.arena.holders():
            opened = shard.staging.tickets.get(ticket)
            if opened is not None:
                times, since = self._unread.get(opened.worker, (0, now))
                self._unread[opened.worker] = (times + 1, since)
        shard.arena.evict()
        self._evicted()

    def _lease_of_holders(self, shard: Shard) -> float:
        """Seconds that the update waits: the less, the more often those that it waits for did not read."""
        opened = [shard.staging.tickets.get(ticket) for ticket in shard.arena.holders()]
        times = [self._unread.get(t.worker, (0, 0.0))[0] for t in opened if t is not None]
        return float(self._lease / LEASE_DIVISOR.value ** min(times, default=0))

    def forgive(self, shard: Shard, ticket: int) -> None:
        """The ticket's version was read."""
        if self._unread:
            opened = shard.staging.tickets.get(ticket)
            if opened is not None:
                self._unread.pop(opened.worker, None)

    def unread(self, seconds: float) -> list[str]:
        """Workers that have read nothing for so long although they were granted versions. They are forgotten."""
        now = time.monotonic()
        found = [worker for worker, (_, since) in self._unread.items() if now - since >= seconds]
        for worker in found:
            del self._unread[worker]
        return found
