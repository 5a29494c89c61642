"""Links: latency to every server, and each server's own link, whose flows share its bandwidth."""

import heapq
from collections.abc import Callable, Sequence

from pslab.simulator.event_queue import EventQueue

Then = Callable[[], None]


class Link:
    """One direction of a server's link: n flows under way get bandwidth / n each (processor sharing).

    `served` counts the bytes that a flow present from the beginning would have
    got; a flow of b bytes that begins at served = s ends at served = s + b. So
    an arrival or an end costs O(log n), not a new date for every flow.
    """

    def __init__(self, queue: EventQueue, bandwidth: float) -> None:
        self._queue = queue
        self._bandwidth = bandwidth
        self._served = 0.0
        self._updated = 0.0
        self._flows: list[tuple[float, int, Then]] = []
        self._sequence = 0
        # Only the latest time that was scheduled for the next end counts.
        self._plan = 0

    def send(self, nbytes: float, then: Then) -> None:
        """`then` happens when `nbytes` have passed."""
        if self._bandwidth <= 0 or nbytes <= 0:
            then()
            return
        self._advance()
        self._sequence += 1
        heapq.heappush(self._flows, (self._served + nbytes, self._sequence, then))
        self._schedule_end()

    def change(self, bandwidth: float) -> None:
        """From now on; flows under way go on at the new rate."""
        self._advance()
        self._bandwidth = bandwidth
        if bandwidth > 0:
            self._schedule_end()
            return
        self._plan += 1
        ended, self._flows = [then for _, _, then in sorted(self._flows, key=lambda flow: flow[:2])], []
        for then in ended:
            then()

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
        # The date was computed from this flow: it has ended, whatever rounding says.
        self._served = max(self._served, self._flows[0][0])
        ended: list[Then] = []
        while self._flows and self._flows[0][0] <= self._served:
            ended.append(heapq.heappop(self._flows)[2])
        self._schedule_end()
        for then in ended:
            then()


class Network:
    """All links of the cluster. `latency` in seconds one way, `bandwidth` in bytes/s, 0 for no limit."""

    def __init__(self, queue: EventQueue, servers: int, latency: float, bandwidth: float) -> None:
        self.latency = latency
        self._queue = queue
        self._out = [Link(queue, bandwidth) for _ in range(servers)]
        self._in = [Link(queue, bandwidth) for _ in range(servers)]
        # Every transfer takes no time at all.
        self.free = latency <= 0 and bandwidth <= 0

    def change(self, latency: float, bandwidth: float) -> None:
        """Of transfers from now on; those under way share the new bandwidth."""
        self.latency, self.free = latency, latency <= 0 and bandwidth <= 0
        for link in (*self._out, *self._in):
            link.change(bandwidth)

    def download(self, sizes: Sequence[int], then: Then) -> None:
        """Ask every server for its part, of `sizes` bytes; `then` when the last has arrived."""
        self._transfer(self._out, sizes, then)

    def upload(self, sizes: Sequence[int], then: Then) -> None:
        """Send every server its part; `then` when the last has acknowledged it."""
        self._transfer(self._in, sizes, then)

    def _transfer(self, links: Sequence[Link], sizes: Sequence[int], then: Then) -> None:
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


def _send(queue: EventQueue, link: Link, nbytes: int, latency: float, then: Then) -> None:
    link.send(nbytes, lambda: queue.after(latency, then))
