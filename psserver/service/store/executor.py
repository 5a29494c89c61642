"""Execution of a shard's orders in log order: small ones at once, large passes on threads beside the loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from psserver.decisions.orders import Save, Writing
from psserver.service.pools import LARGE_PASS
from psserver.service.runtime import Runtime
from psserver.service.store.state import SharedShard
from psserver.shard import Apply, Install, Order, Release, Seal, Shard, VersionMade
from psserver.shard.updates import PendingUpdate
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# Seconds between two looks at the control words of workers that read in place, while an update waits for them.
LOOK_EVERY = 0.001


@dataclass(frozen=True, slots=True)
class Question:
    """A question that is answered behind the orders submitted before it. `look` at the shard changes nothing.

    `passed`: bytes that `look` passes over. `answer` is called in a later turn with the result; never if the shard
    has failed. A question carries the number of the entry that comes next.
    """

    passed: Callable[[Shard], int]
    look: Callable[[Shard], Any]
    answer: Callable[[Any], object]


Submitted = Order | Question
# Orders outside of a usual step, which need something done after them.
_RARE = (Save, Release, Install)


class Executor:
    """The executor of one shard's orders. The loop's thread owns it.

    While `_busy`, the first order of `_queue` is being executed: its arithmetic runs on the pool, or it is an
    update that waits for readers to leave a buffer. `read_limit`: seconds that an unread grant may hold up an update.
    `superseded`: called when versions that are being read are no longer held.
    """

    def __init__(
        self,
        state: SharedShard,
        server: int,
        read_limit: float,
        runtime: Runtime,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._server = server
        self._read_limit = read_limit
        self._runtime = runtime
        self._superseded = superseded
        self._queue: deque[tuple[int, Submitted]] = deque()
        self._busy = False
        # The deadline of the first order's wait for readers, and the timer of its next attempt.
        self._deadline: float | None = None
        self._look_again: asyncio.TimerHandle | None = None
        # Workers that left a granted version unread until it was taken back, and since when.
        self._unread: dict[str, float] = {}
        # Called with each order that has arithmetic and its seconds, if they are measured.
        self.timed: Callable[[Order, float], None] | None = None
        # Called with the fact about each version that the shard has made, once no order is being executed.
        self.executed: Callable[[VersionMade], None] = lambda _: None
        self._facts: list[VersionMade] = []
        # Called with each order to save and its index; returns whether the shard is being copied beside the loop.
        # Nothing may write to it until `copied` is called.
        self.save: Callable[[int, Shard], bool] = lambda _, __: False
        # How many copies are being made beside the loop.
        self._copying = 0
        # Nobody reads here: versions that tickets hold go when an update needs their buffer.
        self.unread_goes = False
        # An order waits for that copy.
        self._waits_for_copy = False

    def submit(self, orders: Iterable[tuple[int, Submitted]]) -> None:
        """Queue orders. Their indices follow those that were submitted before."""
        self._queue.extend(orders)

    def execute_submitted(self) -> None:
        """Execute what can be executed now. An order that must wait continues by itself."""
        queue, state = self._queue, self._state
        while queue and not self._busy and (not state.preparing or state.failure is not None):
            index, order = queue[0]
            if state.failure is None:
                self._attempt(index, order, self._execute)
            else:
                queue.popleft()
        # What follows from them may submit orders, and execute these.
        while self._facts:
            self.executed(self._facts.pop(0))

    def _attempt(self, index: int, order: Submitted, step: Callable[[int, Submitted], bool]) -> None:
        """Run `step`, which returns whether the order is executed. After a failure the shard executes nothing more."""
        try:
            executed = step(index, order)
        except Exception as error:
            self._failed(index, error)
            executed = True
        if executed:
            self._queue.popleft()

    def _failed(self, index: int, error: BaseException) -> None:
        fields = event("entry_failed", entry=index)
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
                # The worker has read its version, in whatever way.
                self.forgive(shard, order.ticket)
            if kind is Seal:
                state.settle_read(order.ticket)
            else:
                state.abandon_reads(shard, [order.ticket])
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
        began = self._runtime.working()
        work.compute()
        self._computed(index, order, work, began)
        return True

    def _executed_rare(self, index: int, order: Order, shard: Shard) -> None:
        if isinstance(order, Save):
            self._copying += self.save(index, shard)
            return
        if isinstance(order, Install):
            self._facts.append(shard.fact)
        self._state.admission.freed()

    def compute_beside(self, index: int, order: Order, work: PendingUpdate) -> None:
        """Compute on another thread; the queue continues when that is done."""
        began = self._runtime.working()

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

        self._runtime.passes.start(work.compute, ended)

    def _computed(self, index: int, order: Order, work: PendingUpdate, began: float) -> None:
        if self.timed is not None:
            self.timed(order, self._runtime.working() - began)
        work.finish()
        shard = self._state.shard
        if shard is not None and isinstance(order, Apply):
            self._facts.append(shard.fact)
            if shard.arena.being_read:
                self._superseded()
        self._state.admission.freed()
        self._state.finish(index)

    def _look(self, shard: Shard, asked: Question) -> bool:
        """Answer a question. Nothing is executed meanwhile, so nothing writes to what it reads."""
        found: list[Any] = []

        def ended(error: BaseException | None) -> None:
            self._busy = False
            if error is not None:
                self._failed(self._queue[0][0], error)
            else:
                self._runtime.loop.call_soon(asked.answer, found[0])
            self._queue.popleft()
            self.execute_submitted()

        def pass_over() -> None:
            found.append(asked.look(shard))

        if asked.passed(shard) > LARGE_PASS:
            self._busy = True
            self._runtime.passes.start(pass_over, ended)
            return False
        pass_over()
        self._runtime.loop.call_soon(asked.answer, found[0])
        return True

    def hold_writes(self) -> None:
        """Let nothing write to the shard until `copied` is called. Call it between two orders."""
        self._copying += 1

    def copied(self) -> None:
        """Note that a copy of the shard is made: its arrays may be written to again, once that is the last."""
        self._copying -= 1
        if self._waits_for_copy and not self._copying:
            self._busy = self._waits_for_copy = False
            self.execute_submitted()

    # Waiting for readers

    def _has_buffer(self, shard: Shard, order: Order) -> bool:
        """Return whether the update has a buffer. It waits for tickets that hold old versions, but no longer than the
        limit."""
        blocked = shard.blocked(order)
        if blocked:
            self._state.end_reads(shard)
            blocked = shard.blocked(order)
        if blocked and self.unread_goes:
            shard.take_back()
            blocked = False
        if not blocked:
            self._deadline = None
            return True
        if self._deadline is None:
            self._deadline = self._runtime.now() + self._read_limit
        left = self._deadline - self._runtime.now()
        if left <= 0:
            self._take_back(shard)
            self._deadline = None
            return True
        # A worker that reads in place does not call when it has read.
        pause = min(left, LOOK_EVERY) if self._state.reading else left
        self._look_again = self._runtime.loop.call_later(pause, self.look)
        return False

    def reading_began(self) -> None:
        """Check the control word of a worker that has begun to read in place, rather than wait for the
        limit."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = self._runtime.loop.call_later(LOOK_EVERY, self.look)

    def look(self) -> None:
        """Retry an order that waits for readers."""
        if self._look_again is None:
            return
        self._look_again.cancel()
        self._look_again, self._busy = None, False
        if not self._state.closed:
            self.execute_submitted()

    def _take_back(self, shard: Shard) -> None:
        log.warning(
            "tickets %s did not read their version within %.1f s: taken back, they will be granted again",
            ", ".join(map(str, shard.holds.unread)),
            self._read_limit,
            extra=event("tickets_taken_back", seconds=self._read_limit),
        )
        now = self._runtime.now()
        for ticket in shard.holds.unread:
            opened = shard.staging.tickets.get(ticket)
            if opened is not None:
                self._unread.setdefault(opened.worker, now)
        self._state.abandon_reads(shard, shard.holds.unread)
        shard.take_back()

    def forgive(self, shard: Shard, ticket: int) -> None:
        """Forget versions that the ticket's worker has not read in time: it has read this one."""
        if self._unread:
            opened = shard.staging.tickets.get(ticket)
            if opened is not None:
                self._unread.pop(opened.worker, None)

    def unread(self, seconds: float) -> list[str]:
        """Return workers that have read no granted version for that long. They are forgotten."""
        now = self._runtime.now()
        found = [worker for worker, since in self._unread.items() if now - since >= seconds]
        for worker in found:
            del self._unread[worker]
        return found
