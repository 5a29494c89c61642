"""Waiting until something has changed, without a thread; taking turns."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final


async def until(future: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for `future`, so many seconds at most. It is done afterwards."""
    timer = future.get_loop().call_later(seconds, settle, future)
    try:
        await future
    finally:
        timer.cancel()


def settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Changes:
    """Those that wait for a change of what the loop's thread owns: each looks again after every `notify`."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        # Looked at before each `notify` on the path of a step.
        self.waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """`condition()`, once it holds or after so many seconds."""
        if condition() or seconds <= 0:
            return condition()
        loop = self._loop()
        end = loop.time() + seconds
        # Who was woken first may have taken what several wait for.
        while not condition() and (left := end - loop.time()) > 0:
            future = loop.create_future()
            self.waiting[future] = condition
            try:
                await until(future, left)
            finally:
                self.waiting.pop(future, None)
        return condition()

    def notify(self) -> None:
        if self.waiting:
            for future, condition in list(self.waiting.items()):
                if condition():
                    del self.waiting[future]
                    settle(future)


class Countdown:
    """Those that wait until a number that only rises is beyond one of their own. A rise costs by those whom it ends."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = loop
        self._order = 0
        self.heap: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self.heap)

    async def wait_beyond(self, number: int, seconds: float, most: int) -> None:
        """Until the number is greater, or so many seconds are over. Of more than `most` that wait, the one that
        waits for the greatest number waits no longer."""
        self._order += 1
        entry = (number, self._order, self._loop().create_future())
        heappush(self.heap, entry)
        if len(self.heap) > most:
            farthest = max(self.heap)
            self._forget(farthest)
            settle(farthest[2])
        try:
            await until(entry[2], seconds)
        finally:
            self._forget(entry)

    def _forget(self, entry: "tuple[int, int, asyncio.Future[None]]") -> None:
        if entry in self.heap:
            self.heap.remove(entry)
            heapify(self.heap)

    def risen(self, number: int) -> None:
        while self.heap and self.heap[0][0] < number:
            settle(heappop(self.heap)[2])

    def drop_all(self) -> None:
        heap, self.heap = self.heap, []
        for _, _, future in heap:
            settle(future)


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
