"""Waiting until something has changed, without a thread."""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush


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
