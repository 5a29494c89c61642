"""Which thread executes a shard's orders: the one that brings them, or one that waits for what is left."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from psserver.service.limits.table import FORBEARANCE
from psserver.service.shard.shared import SharedShard
from psserver.shard import Apply, NonfiniteError, Order, Seal, Shard
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# Between looks at the words of workers that read in place, while an update waits for them; seconds.
LOOK_EVERY = 0.001


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A question behind the orders that were submitted before it: would `update` be finite? Nothing changes.

    `answer` is called with that, and with the largest magnitude of all that it would change; never where the shard
    has failed. It stands under the number of the entry that comes next.
    """

    update: Apply
    answer: Callable[[bool, float], None]


Submitted = Order | Rehearsal


class Executor:
    """Executes the orders of one shard, each under the state's lock but for its heavy half.

    Orders are submitted in log order. They are executed by the submitting
    thread if no other executes (an update of a small model then costs no
    thread switch), else by the thread that runs `run`. That one also takes
    over an update that must wait for readers.

    `_executing` owns the head of `_queue`: its holder looks at the first order
    and removes it. Its tail belongs to the one thread that submits: that of
    the Follow stream, or whichever holds the job's lock.

    `lease`: seconds that an unread grant may hold up an update. `evicted`: called when versions were taken from
    those who read them, under the state's lock.
    """

    def __init__(
        self, state: SharedShard, server: int, lease: float, evicted: Callable[[], None] = lambda: None
    ) -> None:
        self._state = state
        self._server = server
        self._lease = lease
        self._evicted = evicted
        self._executing = threading.Lock()
        # There is something to do for `run`. It does not wait for the state's `changed`: to be woken at
        # every change, and to fight for the lock then, would cost a small step a fifth of its time.
        self._left = threading.Event()
        self._queue: deque[tuple[int, Submitted]] = deque()
        # Workers that left a granted version unread until it was taken back: how often, and since when. Owned by
        # the state's lock.
        self._unread: dict[str, tuple[int, float]] = {}
        # Called with each order that has arithmetic, and its seconds, where they are measured.
        self.timed: Callable[[Order, float], None] | None = None

    def wake(self) -> None:
        """Let `run` look whether the state is closed."""
        self._left.set()

    def submit(self, orders: Iterable[tuple[int, Submitted]]) -> None:
        """Queue orders; they carry the indices that follow on what was submitted before."""
        self._queue.extend(orders)

    def execute_submitted(self, *, wait_for_readers: bool = True) -> None:
        """Execute what is queued now, unless another thread executes; that one, or `run`, goes on.

        Not `wait_for_readers`: leave an update that must wait for readers to `run`. The caller may be what
        they wait for: a worker's next version, granted ahead, comes by the stream that its commit is on.
        """
        try:
            last = self._queue[-1][0]
        except IndexError:
            return
        if last >= self._state.executed and self._executing.acquire(blocking=False):
            try:
                while (
                    self._queue and self._queue[0][0] <= last and (wait_for_readers or not self._must_wait())
                ):
                    self._next()
            finally:
                self._executing.release()
        if self._queue:
            self._left.set()

    def run(self) -> None:
        """Execute what no other thread does, until the state is closed."""
        while not self._state.closed:
            self._left.wait()
            self._left.clear()
            with self._executing:
                while self._queue:
                    self._next()

    def _must_wait(self) -> bool:
        """The first order is an update for which readers leave no buffer."""
        order = self._queue[0][1]
        if not isinstance(order, Apply):
            return False
        with self._state.changed:
            shard = self._state.shard
            if shard is None or not shard.blocked(order):
                return False
            self._state.end_reads(shard)
            return shard.blocked(order)

    def _next(self) -> None:
        index, order = self._queue[0]
        if self._state.failure is None:
            try:
                self._execute(index, order)
            except NonfiniteError as error:
                log.error("%s", error, extra=event("entry_failed", entry=index))
                self._state.fail(str(error), diverged=True)
            except Exception as error:
                told = event("entry_failed", entry=index)
                log.exception("entry %d of the decision log cannot be executed", index, extra=told)
                self._state.fail(f"server {self._server} cannot execute entry {index}: {error}")
        self._queue.popleft()

    def _execute(self, index: int, order: Submitted) -> None:
        state = self._state
        if isinstance(order, Rehearsal):
            if state.shard is not None:
                # No other thread writes to what it reads.
                order.answer(*state.shard.rehearse(order.update))
            return
        with state.changed:
            work = None
            if state.shard is not None:
                if isinstance(order, Seal):
                    # It has what it was granted, whatever way it read it.
                    self.forgive(state.shard, order.ticket)
                self._wait_for_buffer(state.shard, order)
                work = state.shard.prepare(order)
            if work is None:
                state.finish(index)
                return
        began = time.perf_counter()
        work.compute()
        if self.timed is not None:
            self.timed(order, time.perf_counter() - began)
        with state.changed:
            work.finish()
            state.finish(index)

    def _wait_for_buffer(self, shard: Shard, order: Order) -> None:
        """An update waits for readers of old versions, but no longer than their lease."""
        state = self._state
        state.end_reads(shard)
        if not shard.blocked(order):
            return
        shard.arena.evict_unpinned()
        self._evicted()
        deadline = time.monotonic() + self._lease_of_holders(shard)
        while shard.blocked(order) and not state.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                self._take_back(shard)
                return
            # A worker that reads in place wakes no thread when it has read.
            state.changed.wait(min(left, LOOK_EVERY) if state.reading else left)
            state.end_reads(shard)

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
        return float(self._lease / FORBEARANCE.value ** min(times, default=0))

    def forgive(self, shard: Shard, ticket: int) -> None:
        """The ticket's version was read. Hold the state's lock."""
        if self._unread:
            opened = shard.staging.tickets.get(ticket)
            if opened is not None:
                self._unread.pop(opened.worker, None)

    def unread(self, seconds: float) -> list[str]:
        """Workers that have read nothing for so long although they were granted versions. They are forgotten."""
        if not self._unread:
            return []
        now = time.monotonic()
        with self._state.changed:
            found = [worker for worker, (_, since) in self._unread.items() if now - since >= seconds]
            for worker in found:
                del self._unread[worker]
        return found
