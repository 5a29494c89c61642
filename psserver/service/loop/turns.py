"""Work for strangers, of whom anybody may send many: a piece in each turn of the loop, every address in its turn."""

import asyncio
from collections import deque

from psserver.service.loop.owner import Owner


class Turns:
    """The loop's thread owns it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # Who waits, by address, those first whose turn is next.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def mine(self, address: str) -> None:
        """Until it is this one's turn: in a later turn of the loop, in which nobody else has one."""
        future = self._owner.loop.create_future()
        begin = not self._waiting
        self._waiting.setdefault(address, deque()).append(future)
        if begin:
            self._owner.loop.call_soon(self._next)
        await future

    def _next(self) -> None:
        given = False
        while self._waiting and not given:
            address = next(iter(self._waiting))
            # Behind all others, if it has more.
            waiting = self._waiting.pop(address)
            given = _give(waiting)
            if waiting:
                self._waiting[address] = waiting
        if self._waiting:
            self._owner.loop.call_soon(self._next)


def _give(waiting: "deque[asyncio.Future[None]]") -> bool:
    """To the first that still waits; those who were cut meanwhile do not."""
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False
