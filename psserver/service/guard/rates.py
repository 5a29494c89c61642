"""Rate limits for actions that log lines but do no work, and fair turns on the loop's time."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pswire import running

# Names that have committed nothing, together. Twice the workers that a job was started for may come at once.
NEW_NAMES_PER_SECOND: Final = 20.0
NEW_BURST: Final = 256
# Joins, or streams, of one name that has committed.
REJOINS_PER_SECOND: Final = 1.0
REJOIN_BURST: Final = 20
# Joins of one address with a model that the job does not have. Each costs up to 0.4 s to read, plan and compare.
MODELS_PER_SECOND: Final = 0.1
MODEL_BURST: Final = 16
# Operators' notes, of one address.
NOTES_PER_SECOND: Final = 1.0
NOTE_BURST: Final = 20
# Refused calls of one address, beyond which it is throttled.
REFUSALS_PER_SECOND: Final = 20.0
REFUSAL_BURST: Final = 100


class TokenBucket:
    """A rate limit: `burst` at once, then `rate` per second. `clock`: seconds, monotonic. The loop's thread owns
    it."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = running.now) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        # When the whole burst is available again.
        self._full = clock()

    def take(self) -> bool:
        """Spend one and return True if the rate allows it now."""
        if self.wait() > 0:
            return False
        self.spend()
        return True

    def spend(self) -> None:
        """Spend one."""
        self._full = max(self._full, self._clock()) + 1 / self._rate

    @property
    def full(self) -> bool:
        """Whether the whole burst is available."""
        return self._full <= self._clock()

    def wait(self) -> float:
        """Return the seconds until the next one is allowed; 0: now."""
        return max(0.0, self._full - self._clock() - (self._burst - 1) / self._rate)


class Buckets:
    """A bucket per key. Full buckets are swept, because they carry no information. The loop's thread owns them."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = running.now) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._of: dict[str, TokenBucket] = {}
        self._sweep_at = clock() + burst / rate

    def __len__(self) -> int:
        """Return the number of keys with a bucket."""
        return len(self._of)

    def allows(self, key: str) -> bool:
        known = self._of.get(key)
        return known is None or known.wait() == 0

    def spend(self, key: str) -> None:
        """Spend one of the key's bucket."""
        self._sweep()
        if key not in self._of:
            self._of[key] = TokenBucket(self._rate, self._burst, self._clock)
        self._of[key].spend()

    def _sweep(self) -> None:
        """Drop full buckets, once in the time that an empty one takes to fill."""
        now = self._clock()
        if now >= self._sweep_at:
            self._sweep_at = now + self._burst / self._rate
            self._of = {key: bucket for key, bucket in self._of.items() if not bucket.full}


class Arrivals:
    """Rate limits for joins and reconnects: one pace for all names that have never committed, one for each name
    that has.

    So no flood of new names keeps a worker from coming back. A name that only comes and goes has no pace of its
    own, because a thousand names would then come a thousand times as often. `workers`: that the job was started
    for. `proven`: whether the worker of that name has ever committed. The loop's thread owns it.
    """

    def __init__(
        self, workers: int, proven: Callable[[str], bool], clock: Callable[[], float] = running.now
    ) -> None:
        self._proven = proven
        self._new = TokenBucket(NEW_NAMES_PER_SECOND, max(NEW_BURST, 2 * workers), clock)
        self._known = Buckets(REJOINS_PER_SECOND, REJOIN_BURST, clock)

    def __len__(self) -> int:
        """Return the number of names with a bucket."""
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


# Seconds of the loop that may be spent at once.
BURST_SECONDS: Final = 0.1
# The same of joins: some thousand workers join at the same moment.
JOIN_BURST_SECONDS: Final = 1.0


class Turns:
    """Fair turns on the loop's time: at most `share` of it beyond `burst` seconds, addresses in rotation.

    The cost of a turn is what its task does until it next waits. The loop's thread owns it.
    """

    def __init__(
        self,
        share: float = 1.0,
        clock: Callable[[], float] = running.now,
        burst: float = BURST_SECONDS,
    ) -> None:
        self._share, self._clock, self._burst = share, clock, burst
        # Waiting tasks by address, in the order of their next turn.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Whether a turn is running or scheduled.
        self._going = False
        # When the present turn began, and the time until which all turns are paid for.
        self._began = self._paid = clock()

    async def wait(self, address: str) -> None:
        """Wait for a turn: in a later turn of the loop, which it shares with no other."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(future)
        if not self._going:
            self._going = True
            self._soon()
        await future

    def _soon(self) -> None:
        """Schedule the next turn as soon as the share allows."""
        loop = asyncio.get_running_loop()
        ahead = self._paid - self._clock() - self._burst / self._share
        if ahead > 0:
            loop.call_later(ahead, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        # Nothing runs between these two callbacks but the task that gets the turn.
        loop.call_soon(self._begin)
        given = False
        while self._waiting and not given:
            address = next(iter(self._waiting))
            # The address goes to the end if it has more.
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
    """Give the turn to the first task that still waits; return False if none does."""
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False
