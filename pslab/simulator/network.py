"""The event queue of a virtual clock; links and messages.

Each server has a latency and a link of its own, whose flows share its bandwidth. Messages between a worker and the
coordinator arrive in order, at least once.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random


class EventQueue:
    """Actions in order of (time, sequence): at equal times, the one that was scheduled first comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        # The number of actions so far.
        self.done = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        """Schedule ``action(*arguments)`` at `time`, or now if that has passed."""
        self._sequence += 1
        heappush(self._heap, (max(time, self.now), self._sequence, action, arguments))

    def after(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now + seconds, self._sequence, action, arguments))

    def step(self) -> bool:
        """Do the next action. Return False if there is none."""
        if not self._heap:
            return False
        self.now, _, action, arguments = heappop(self._heap)
        self.done += 1
        action(*arguments)
        return True


Then = Callable[[], None]


class SimulatedLink:
    """One direction of a server's link: n concurrent flows get bandwidth / n each (processor sharing).

    `served` counts the bytes that a flow present from the beginning would have received; a flow of b bytes that begins
    at served = s ends at served = s + b. So an arrival or an end costs O(log n), not a new date for every flow.
    """

    def __init__(self, queue: EventQueue, bandwidth: float) -> None:
        self._queue = queue
        self._bandwidth = bandwidth
        self._served = 0.0
        self._updated = 0.0
        self._flows: list[tuple[float, int, Then]] = []
        self._sequence = 0
        # Only the newest schedule of the next end is valid.
        self._plan = 0

    def send(self, nbytes: float, then: Then) -> None:
        """Call `then` when `nbytes` have passed."""
        if self._bandwidth <= 0 or nbytes <= 0:
            then()
            return
        self._advance()
        self._sequence += 1
        heapq.heappush(self._flows, (self._served + nbytes, self._sequence, then))
        self._schedule_end()

    def _advance(self) -> None:
        now = self._queue.now
        if self._flows:
            self._served += (now - self._updated) * self._bandwidth / len(self._flows)
        self._updated = now

    def _schedule_end(self) -> None:
        self._plan += 1
        if self._flows:
            left = max(0.0, self._flows[0][0] - self._served)
            self._queue.after(left * len(self._flows) / self._bandwidth, self._end, self._plan)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        # The date was computed from this flow, so it has ended, even if rounding differs.
        self._served = max(self._served, self._flows[0][0])
        ended: list[Then] = []
        while self._flows and self._flows[0][0] <= self._served:
            ended.append(heapq.heappop(self._flows)[2])
        self._schedule_end()
        for then in ended:
            then()


class Network:
    """All links of the cluster. `latency`: seconds one way; `bandwidth`: bytes/s, 0 for no limit.

    `free`: transfers take no time.
    """

    def __init__(self, queue: EventQueue, servers: int, latency: float, bandwidth: float) -> None:
        self.latency = latency
        self._queue = queue
        self._out = [SimulatedLink(queue, bandwidth) for _ in range(servers)]
        self._in = [SimulatedLink(queue, bandwidth) for _ in range(servers)]
        self.free = latency <= 0 and bandwidth <= 0

    def download(self, sizes: Sequence[int], then: Then) -> None:
        """Get each server's part, of `sizes` bytes, and call `then` when the last has arrived."""
        self._transfer(self._out, sizes, then)

    def upload(self, sizes: Sequence[int], then: Then) -> None:
        """Send each server its part, and call `then` when the last has acknowledged it."""
        self._transfer(self._in, sizes, then)

    def _transfer(self, links: Sequence[SimulatedLink], sizes: Sequence[int], then: Then) -> None:
        if self.free:
            then()
            return
        left = len(links)

        def arrived() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for link, nbytes in zip(links, sizes, strict=True):
            self._queue.after(self.latency, _send, self._queue, link, nbytes, self.latency, arrived)


def _send(queue: EventQueue, link: SimulatedLink, nbytes: int, latency: float, then: Then) -> None:
    link.send(nbytes, lambda: queue.after(latency, then))


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Faults of messages. A lost one is sent again `resend` seconds later, until it arrives."""

    latency: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    resend: float = 0.2

    @property
    def perfect(self) -> bool:
        return not (self.latency or self.loss or self.duplicate)


class Channel:
    """One direction of a worker's session stream: messages stay in order, and some arrive twice."""

    __slots__ = ("_queue", "_faultless", "_link_faults", "_last", "_rng", "down_until")

    def __init__(self, queue: EventQueue, link_faults: LinkFaults, rng: Random) -> None:
        self._queue = queue
        self._link_faults = link_faults
        self._faultless = link_faults.perfect
        self._rng = rng
        self._last = 0.0
        # No message leaves before this time: the end of a broken connection.
        self.down_until = 0.0

    def immediate(self) -> bool:
        """Return True if a message arrives at the moment at which it is sent."""
        return self._faultless and self._last <= self._queue.now >= self.down_until

    def send(self, action: Callable[..., None], *arguments: object) -> None:
        """Schedule ``action(*arguments)`` for the arrival of the message."""
        link_faults, rng = self._link_faults, self._rng
        arrival = max(self._queue.now, self.down_until) + link_faults.latency
        while link_faults.loss and rng.random() < link_faults.loss:
            arrival += link_faults.resend
        self._last = max(self._last, arrival)
        self._queue.at(self._last, action, *arguments)
        if link_faults.duplicate and rng.random() < link_faults.duplicate:
            self._queue.at(self._last, action, *arguments)
