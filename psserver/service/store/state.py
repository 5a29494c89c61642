"""The state of a shard: its job, its progress in the log, its readers in place, its waiting pushes."""

from asyncio import Future
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from psserver.service.errors import Code, RequestRefused, unavailable
from psserver.service.net.loop import CounterWaits, Waiters, settle, until
from psserver.service.runtime import Runtime
from psserver.service.store.shared_memory import ControlWord
from psserver.shard import Shard

# Seconds after which a waiting push checks again, whatever happens.
RECHECK_EVERY = 1.0


class PushAdmission:
    """Waiting pushes, in the order of their turns. The loop's thread owns it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By ticket. A worker that has begun anew may leave an earlier push of the ticket behind.
        self._waiting: dict[int, list[Future[None]]] = {}
        # (turn, ticket, order of arrival, what wakes it). Pushes that wait no more are removed when their turn comes.
        self._order: list[tuple[int, int, int, Future[None]]] = []
        self._arrivals = 0

    async def wait(self, ticket: int, turn: int) -> None:
        """Wait for a reason to check again."""
        woken: Future[None] = self._runtime.loop.create_future()
        self._waiting.setdefault(ticket, []).append(woken)
        self._arrivals += 1
        heappush(self._order, (turn, ticket, self._arrivals, woken))
        try:
            await until(woken, RECHECK_EVERY)
        finally:
            self._waiting[ticket].remove(woken)
            if not self._waiting[ticket]:
                del self._waiting[ticket]
            # `freed` passes over it.
            settle(woken)

    def changed(self, ticket: int) -> None:
        """Wake the push of a ticket that is closed, or whose earlier push has ended."""
        for woken in self._waiting.get(ticket, ()):
            settle(woken)

    def freed(self) -> None:
        """Wake the push whose turn is the first: there may be room for it."""
        while self._order and self._order[0][3].done():
            heappop(self._order)
        if self._order:
            settle(heappop(self._order)[3])

    def wake_all(self) -> None:
        """Wake all pushes: nothing that they wait for will come."""
        for ticket in self._waiting:
            self.changed(ticket)


class SharedShard:
    """The state of a shard that the server's parts share: the shard, its progress in the log, its failure, its
    readers in place.

    The loop's thread owns everything here and in the shard, except that the arrays of a `PendingUpdate` belong to
    the thread that computes it.
    """

    def __init__(self, runtime: Runtime) -> None:
        # Waiters: for rare changes, for the log, for room.
        self.changes = Waiters(runtime)
        self.catching_up = CounterWaits(runtime)
        self.runtime = runtime
        self.admission = PushAdmission(runtime)
        # The job that this server serves, and the secret that proves its members; empty before.
        self.job = ""
        self.secret = b""
        self.shard: Shard | None = None
        # Entries [0, executed) of the log are executed.
        self.executed = 0
        # Pieces of work that still make the shard ready: to compile its loops, to restore a checkpoint. Until they are
        # done nothing is executed, so nobody is a member or pushes.
        self.preparing = 0
        # Why no further entry is executed, if so.
        self.failure: str | None = None
        self.closed = False
        # Payloads staged and versions given out since the start.
        self.received = 0
        self.served = 0
        # Control words of workers that read in place, by ticket.
        self._readers: dict[int, ControlWord] = {}

    def finish(self, index: int) -> None:
        """Record that entry `index` is executed."""
        self.executed = index + 1
        # On the path of every entry; usually nobody waits.
        if self.catching_up.heap:
            self.catching_up.advance(index + 1)
        if self.changes.waiting:
            self.changes.notify()

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._end_waits()

    def close(self) -> None:
        """End every wait; no more orders come."""
        self.closed = True
        self._end_waits()

    def check_going(self, server: int) -> None:
        """Raise Refused if nothing is executed any more."""
        if self.failure is not None:
            raise RequestRefused(Code.INTERNAL, self.failure)
        if self.closed:
            raise unavailable(f"server {server} is shutting down")

    async def wait_ready(self, seconds: float = float("inf")) -> bool:
        """Wait until the shard can execute, at most `seconds`; return whether it can, or is over."""
        return await self.changes.wait_for(lambda: not self.preparing or self.over, seconds)

    async def wait_for(self, condition: Callable[[], bool], seconds: float, server: int) -> bool:
        """Wait until the condition holds, at most `seconds`; return whether it does. Raises Refused if nothing is
        executed any more."""
        await self.changes.wait_for(lambda: condition() or self.over, seconds)
        met = condition()
        if not met or self.failure is not None:
            self.check_going(server)
        return met

    def _end_waits(self) -> None:
        self.catching_up.drop_all()
        self.admission.wake_all()
        self.changes.notify()

    @property
    def over(self) -> bool:
        """Whether nothing that is waited for will come."""
        return self.closed or self.failure is not None

    # Reading in place

    @property
    def reading(self) -> bool:
        """Whether a worker reads in place. It tells only by its control word when it has read."""
        return bool(self._readers)

    def begin_read(self, ticket: int, reader: ControlWord) -> None:
        """Record that the ticket's version is read in place."""
        self._readers[ticket] = reader

    def settle_read(self, ticket: int) -> None:
        """Forget the read in place of a committed ticket: its worker has read."""
        if self._readers:
            self._readers.pop(ticket, None)

    def abandon_reads(self, shard: Shard, tickets: Iterable[int]) -> None:
        """Forget the reads in place of tickets that lose their versions. Workers may still read: those buffers are
        never written again."""
        for ticket in tickets if self._readers else ():
            reader, version = self._readers.pop(ticket, None), shard.holds.of(ticket)
            if reader is not None and version is not None and not reader.has_read(ticket):
                shard.arena.spoil(version)

    def end_reads(self, shard: Shard) -> None:
        """Release what workers have read, by their control words."""
        for ticket in [t for t, reader in self._readers.items() if reader.has_read(t)]:
            shard.holds.has_read(ticket)
            del self._readers[ticket]
