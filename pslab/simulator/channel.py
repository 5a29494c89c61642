"""Messages between a worker and the coordinator: in order, at least once."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pslab.simulator.event_queue import EventQueue


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """How messages fare. A lost one is sent again `resend` seconds later, until it arrives."""

    latency: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    resend: float = 0.2

    @property
    def perfect(self) -> bool:
        return not (self.latency or self.loss or self.duplicate)


class Channel:
    """One direction of a worker's session stream: nothing overtakes, some things come twice."""

    __slots__ = ("_queue", "_faultless", "_link_faults", "_last", "_rng", "down_until")

    def __init__(self, queue: EventQueue, link_faults: LinkFaults, rng: Random) -> None:
        self._queue = queue
        self._link_faults = link_faults
        self._faultless = link_faults.perfect
        self._rng = rng
        self._last = 0.0
        # Nothing leaves before; a broken connection moves it into the future.
        self.down_until = 0.0

    def immediate(self) -> bool:
        """A message arrives in the moment in which it is sent."""
        return self._faultless and self._last <= self._queue.now >= self.down_until

    def send(self, action: Callable[..., None], *arguments: object) -> None:
        """Have ``action(*arguments)`` happen where and when the message arrives."""
        link_faults, rng = self._link_faults, self._rng
        arrival = max(self._queue.now, self.down_until) + link_faults.latency
        while link_faults.loss and rng.random() < link_faults.loss:
            arrival += link_faults.resend
        self._last = max(self._last, arrival)
        self._queue.at(self._last, action, *arguments)
        if link_faults.duplicate and rng.random() < link_faults.duplicate:
            self._queue.at(self._last, action, *arguments)
