"""Pushes that wait until memory admits them, in the order of their turns."""

from asyncio import Future
from dataclasses import dataclass
from heapq import heappop, heappush

from psserver.service.net.owner import Owner
from psserver.service.net.waits import settle, until

# A push looks again so often, whatever it is told; seconds.
LOOK_EVERY = 1.0


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
            await until(place.future, LOOK_EVERY)
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
