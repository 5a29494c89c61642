"""Who executes a shard's orders: the thread that brings them, or one that waits for what is left."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from psserver.shard import Apply, Order, Shard
from psserver.shard.shard import PendingUpdate

if TYPE_CHECKING:
    from psserver.service.shard_host import ShardHost

log = logging.getLogger("ps-server")

# Between looks at the words of workers that read in place, while an update waits for them; seconds.
LOOK_EVERY = 0.001


class Executor:
    """Executes the orders of one shard, each under the host's lock but for its heavy half.

    Orders are submitted in log order. They are executed by the submitting
    thread if nobody else is at it (an update of a small model then costs no
    thread switch), else by the thread that runs `run`. That one also takes
    over an update that must wait for readers.
    """

    def __init__(self, host: "ShardHost") -> None:
        self._host = host
        self._executing = threading.Lock()
        # There is something to do for `run`. It does not listen to the host's `changed`: to be woken at
        # every change, and to fight for the lock then, would cost a small step a fifth of its time.
        self._left = threading.Event()
        self._queue: deque[tuple[int, Order]] = deque()

    def wake(self) -> None:
        """Let `run` look whether the host is closed."""
        self._left.set()

    def submit(self, orders: Iterable[tuple[int, Order]]) -> None:
        """Queue orders; they carry the indices that follow on what was submitted before."""
        self._queue.extend(orders)

    def execute_submitted(self, *, patient: bool = True) -> None:
        """Execute what is queued now, unless another thread is at it; that one, or the executor, goes on.

        Not `patient`: leave an update that must wait for readers to the executor. The caller may be what
        they wait for: a worker's next version, granted ahead, comes by the stream that its commit is on.
        """
        try:
            last = self._queue[-1][0]
        except IndexError:
            return
        if last >= self._host.executed and self._executing.acquire(blocking=False):
            try:
                while self._queue and self._queue[0][0] <= last and (patient or not self._must_wait()):
                    self._next()
            finally:
                self._executing.release()
        if self._queue:
            self._left.set()

    def run(self) -> None:
        """Execute whatever nobody else does, until closed."""
        while not self._host.closed:
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
        with self._host.changed:
            shard = self._host.shard
            if shard is None or not shard.blocked(order):
                return False
            self._host.end_reads(shard)
            return shard.blocked(order)

    def _next(self) -> None:
        host, (index, order) = self._host, self._queue[0]
        if host.failure is None:
            try:
                self._execute(index, order)
            except Exception as error:
                log.exception("entry %d of the decision log cannot be executed", index)
                with host.changed:
                    host.failure = f"server {host.server} cannot execute entry {index}: {error}"
                    host.changed.notify_all()
        self._queue.popleft()

    def _execute(self, index: int, order: Order) -> None:
        with self._host.changed:
            shard = self._host.shard
            work = self._prepared(shard, order) if shard is not None else None
            if work is None:
                self._executed(shard, index)
                return
        work.compute()
        with self._host.changed:
            work.finish()
            self._executed(shard, index)

    def _prepared(self, shard: Shard, order: Order) -> PendingUpdate | None:
        self._wait_for_buffer(shard, order)
        return shard.prepare(order)

    def _executed(self, shard: Shard | None, index: int) -> None:
        if shard is not None:
            self._host.end_reads(shard)
        self._host.executed = index + 1
        self._host.changed.notify_all()

    def _wait_for_buffer(self, shard: Shard, order: Order) -> None:
        """An update waits for readers of old versions, but no longer than their lease."""
        host = self._host
        host.end_reads(shard)
        deadline = time.monotonic() + host.options.lease
        while shard.blocked(order) and not host.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                self._take_back(shard)
                return
            # A worker that reads in place wakes nobody when it has read.
            host.changed.wait(min(left, LOOK_EVERY) if host.reading else left)
            host.end_reads(shard)

    def _take_back(self, shard: Shard) -> None:
        log.warning(
            "tickets %s did not read their version within %.1f s: taken back, they will be granted again",
            ", ".join(map(str, shard.arena.holders())) or "of slow readers",
            self._host.options.lease,
        )
        shard.arena.evict()
