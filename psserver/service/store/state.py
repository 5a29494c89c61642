"""The state of a shard: its job, its progress in the log, its readers in place, its waiting pushes."""

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import grpc

from psserver.service.errors import Refused
from psserver.service.net.loop import Changes, CounterWaits, Owner, settle, until
from psserver.service.store.shared_memory import ControlWord
from psserver.shard import Shard

# A push looks again so often, whatever it is told; seconds.
RECHECK_EVERY = 1.0


@dataclass(slots=True, eq=False)
class Place:
    """One that waits. `superseded`: its worker pushes the ticket anew."""

    ticket: int
    future: "Future[None]"
    superseded: bool = False


class PushAdmission:
    """One push of each ticket waits, the newest. The loop's thread owns it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._places: dict[int, Place] = {}
        # (turn, order of arrival, place); those that wait no more are left in it until they come up.
        self._order: list[tuple[int, int, Place]] = []
        self._arrivals = 0

    async def wait(self, ticket: int, turn: int) -> bool:
        """Until there is a reason to look again. False for a push that a newer one of its ticket replaces."""
        self.supersede(ticket)
        place = Place(ticket, self._owner.loop.create_future())
        self._places[ticket] = place
        self._arrivals += 1
        heappush(self._order, (turn, self._arrivals, place))
        try:
            await until(place.future, RECHECK_EVERY)
        finally:
            if self._places.get(ticket) is place:
                del self._places[ticket]
            # Marked, for those that come up in the order.
            settle(place.future)
        return not place.superseded

    def supersede(self, ticket: int) -> None:
        """A newer push of the ticket is here."""
        before = self._places.pop(ticket, None)
        if before is not None:
            before.superseded = True
            settle(before.future)

    def changed(self, ticket: int) -> None:
        """The ticket is closed, or an earlier push of it has ended."""
        if self._places:
            place = self._places.get(ticket)
            if place is not None:
                settle(place.future)

    def freed(self) -> None:
        """There may be room for the one whose turn is the first."""
        while self._order and self._order[0][2].future.done():
            heappop(self._order)
        if self._order:
            settle(heappop(self._order)[2].future)

    def wake_all(self) -> None:
        """Nothing is waited for any more."""
        for place in list(self._places.values()):
            settle(place.future)


class SharedShard:
    """The shard, how far it has executed the log, why no further, and who reads its versions in place.

    The loop's thread owns everything here and the shard with all that it holds,
    except that the arrays of a `PendingUpdate` belong to the thread that computes it.
    """

    def __init__(self, owner: Owner) -> None:
        # Those that wait: for something rare, for the log, for room.
        self.changes = Changes(lambda: owner.loop)
        self.catching_up = CounterWaits(lambda: owner.loop)
        self.admission = PushAdmission(owner)
        # The job that it serves, and what proves its members; empty before it serves one.
        self.job = ""
        self.secret = b""
        self.shard: Shard | None = None
        # Entries [0, executed) of the log are executed.
        self.executed = 0
        # Why no entry is executed any more.
        self.failure: str | None = None
        # An update was not finite: that is why.
        self.diverged = False
        self.closed = False
        # Complete payloads that were staged, and versions that were given out, since the start.
        self.received = 0
        self.served = 0
        # The control word of each worker that reads in place, by ticket.
        self._readers: dict[int, ControlWord] = {}

    def finish(self, index: int) -> None:
        """Entry `index` is executed."""
        self.executed = index + 1
        # Of every entry of every step: mostly nobody waits.
        if self.catching_up.heap:
            self.catching_up.advance(index + 1)
        if self.changes.waiting:
            self.changes.notify()

    def fail(self, reason: str, *, diverged: bool = False) -> None:
        self.failure, self.diverged = reason, diverged
        self._end_waits()

    def close(self) -> None:
        """No more orders; every wait ends."""
        self.closed = True
        self._end_waits()

    def check_going(self, server: int) -> None:
        """Raises Refused where nothing is executed any more."""
        if self.failure is not None:
            raise Refused(grpc.StatusCode.INTERNAL, self.failure)
        if self.closed:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {server} is shutting down")

    async def wait_for(self, condition: Callable[[], bool], seconds: float, server: int) -> bool:
        """Does it hold within so long? Raises Refused where nothing is executed any more."""
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
        """Nothing that is waited for will come."""
        return self.closed or self.failure is not None

    # Reading in place

    @property
    def reading(self) -> bool:
        """A worker reads in place, and says in its words only when it has read."""
        return bool(self._readers)

    def begin_read(self, ticket: int, reader: ControlWord) -> None:
        """The ticket's version is read in place."""
        self._readers[ticket] = reader

    def settle_read(self, ticket: int) -> None:
        """The pin of the ticket has ended in another way."""
        if self._readers:
            self._readers.pop(ticket, None)

    def end_reads(self, shard: Shard) -> None:
        """Unpin what workers say that they have read: a look at each of them."""
        if not self._readers:
            return
        for ticket in [t for t, reader in self._readers.items() if reader.has_read(t)]:
            shard.arena.unpin(ticket)
        self._readers = {t: self._readers[t] for t in shard.arena.in_place}
