"""Work for strangers, of whom anybody may send many: a piece in each turn of the loop, every address in its turn."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Of seconds of the loop that are spent at once: some thousand workers join at the same moment.
AT_ONCE: Final = 1.0


class Turns:
    """`share`: of the loop's time, beyond `AT_ONCE` seconds; in between others have it. The loop's thread owns it.

    What a turn costs is what its task does before it waits for anything again.
    """

    def __init__(self, share: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        # Who waits, by address, those first whose turn is next.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # A turn is given or will be.
        self._going = False
        # When the present turn began, and when turns will have had no more than their share.
        self._began = self._paid = clock()

    async def mine(self, address: str) -> None:
        """Until it is this one's turn: in a later turn of the loop, in which nobody else has one."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(future)
        if not self._going:
            self._going = True
            self._soon()
        await future

    def _soon(self) -> None:
        """The next turn, as soon as the share allows."""
        loop = asyncio.get_running_loop()
        ahead = self._paid - self._clock() - AT_ONCE / self._share
        if ahead > 0:
            loop.call_later(ahead, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        # Nothing comes between these two and the task that goes on.
        loop.call_soon(self._begin)
        given = False
        while self._waiting and not given:
            address = next(iter(self._waiting))
            # Behind all others, if it has more.
            waiting = self._waiting.pop(address)
            given = _give(waiting)
            if waiting:
                self._waiting[address] = waiting
        loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began = self._clock()

    def _end(self) -> None:
        now = self._clock()
        self._paid = max(self._paid, self._began) + (now - self._began) / self._share
        self._going = bool(self._waiting)
        if self._going:
            self._soon()


def _give(waiting: "deque[asyncio.Future[None]]") -> bool:
    """To the first that still waits; those who were cut meanwhile do not."""
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False
