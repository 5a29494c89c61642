"""Rate limits for actions that log lines but do no work, and fair turns on the loop's time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Names that have committed nothing, all together: twice the workers that a job was started for may come at once.
NEW_NAMES_PER_SECOND: Final = 20.0


NEW_BURST: Final = 256


# Of one name that has committed: joins, or streams.
REJOINS_PER_SECOND: Final = 1.0


REJOIN_BURST: Final = 20


# Of one address: Joins with a model that the job does not have. Each is read, planned or compared for 0.4 s at most.
MODELS_PER_SECOND: Final = 0.1


MODEL_BURST: Final = 16


# Operators' remarks, of one address.
NOTES_PER_SECOND: Final = 1.0


NOTE_BURST: Final = 20


class TokenBucket:
    """Lets `burst` happen at once, then `rate` per second. The loop's thread owns it.

    `clock`: seconds, monotonic.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        # When all of the burst is there again.
        self._full = clock()

    def take(self) -> bool:
        """It may happen now, and has."""
        if self.wait() > 0:
            return False
        self.spend()
        return True

    def spend(self) -> None:
        """It has happened."""
        self._full = max(self._full, self._clock()) + 1 / self._rate

    @property
    def full(self) -> bool:
        """All of the burst is there, as if nothing had happened."""
        return self._full <= self._clock()

    def wait(self) -> float:
        """Seconds until it may happen; 0: now."""
        return max(0.0, self._full - self._clock() - (self._burst - 1) / self._rate)


class Buckets:
    """A bucket for each key. One that is full again is forgotten: it says nothing. The loop's thread owns them."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._of: dict[str, TokenBucket] = {}
        self._sweep_at = clock() + burst / rate

    def __len__(self) -> int:
        """Keys of which something is kept."""
        return len(self._of)

    def allows(self, key: str) -> bool:
        known = self._of.get(key)
        return known is None or known.wait() == 0

    def spend(self, key: str) -> None:
        """It has happened."""
        self._sweep()
        if key not in self._of:
            self._of[key] = TokenBucket(self._rate, self._burst, self._clock)
        self._of[key].spend()

    def _sweep(self) -> None:
        """Once in the time that an empty bucket takes to be full."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + self._burst / self._rate
            self._of = {key: bucket for key, bucket in self._of.items() if not bucket.full}


class Arrivals:
    """Who may come now: all names that have brought no work at one pace, each of the others at a pace of its own, so
    that no flood of strangers' names keeps a worker from coming back. The loop's thread owns it.

    A name that only comes and goes has no pace of its own: a thousand of them would come a thousand times as often.

    `workers`: that the job was started for. `proven`: whether the worker of that name has ever committed.
    """

    def __init__(
        self, workers: int, proven: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proven = proven
        self._new = TokenBucket(NEW_NAMES_PER_SECOND, max(NEW_BURST, 2 * workers), clock)
        self._known = Buckets(REJOINS_PER_SECOND, REJOIN_BURST, clock)

    def __len__(self) -> int:
        """Names of which something is kept."""
        return len(self._known)

    def allows(self, name: str) -> bool:
        if self._proven(name):
            return self._known.allows(name)
        return self._new.wait() == 0

    def record(self, name: str) -> None:
        if self._proven(name):
            self._known.spend(name)
        else:
            self._new.spend()


# Of seconds of the loop that are spent at once: some thousand workers join at the same moment.
BURST_SECONDS: Final = 1.0


class Turns:
    """`share`: of the loop's time, beyond `BURST_SECONDS`; in between others have it. The loop's thread owns it.

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

    async def wait(self, address: str) -> None:
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
        ahead = self._paid - self._clock() - BURST_SECONDS / self._share
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
